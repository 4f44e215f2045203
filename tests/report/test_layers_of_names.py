"""Layers by the scopes in op names."""

import numpy as np
import pytest

from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.report.layers import OTHER, find_layers, forward_starts, layers_of
from tfplace.simulate import Simulator


def layers_by_op(names, weight=None, **options):
  weight = np.ones(len(names)) if weight is None else np.array(weight)
  layers = find_layers(names, weight, **options)
  return [layers.names[i] for i in layers.layer_of]


@pytest.mark.parametrize(
  "name, layer",
  [
    ("m/conv/Conv2D", "conv"),
    ("gradient_tape/m/conv/Conv2DBackprop", "conv"),
    ("gradients/m/conv/x", "conv"),
    ("m/step_7/lstm/MatMul", "lstm"),
    ("gradient_tape/m/step_7/lstm/cell/MatMul", "lstm"),
    ("adam/Mul_3", "adam"),
    ("Const_4", OTHER),
    ("m/Reshape", OTHER),
  ],
)
def test_layer_of_a_name(name, layer):
  body = ["m/conv/Conv2D", "m/dense/MatMul", "m/step_0/lstm/MatMul"] * 9
  assert layers_by_op([name, *body])[0] == layer


@pytest.mark.parametrize(
  "names, weight, most_share, layers",
  [
    # A model in a model is opened; numbers that a user gave are kept.
    ("outer/inner/a_1/x outer/inner/a_2/x opt/x", None, 1, "a_1 a_2 opt"),
    # The weight decides which scope is the model, not the number of ops.
    ("m/a/x m/b/x adam/u/x adam/v/x", [9, 9, 0.1, 0.1], 1, "a b adam adam"),
    # Without scopes, each op is a layer.
    ("x y z", None, 1, "x y z"),
    # Heavy layers are divided on request.
    ("m/a/x/op m/a/y/op m/b/op m/c/op", [3, 2, 3, 2], 0.4, "x y b c"),
    ("m/a/x/op m/a/y/op m/b/op m/c/op", [3, 2, 3, 2], 0.6, "a a b c"),
    # Layers of the same name are apart; a number alone is no name.
    ("m/a/0/x m/a/1/x m/b/0/x m/b/1/x", None, 0.3, "a/0 a/1 b/0 b/1"),
    ("m/blocks/0/x m/blocks/1/x", None, 1, "blocks/0 blocks/1"),
    # A name that is unique stays short.
    ("m/a/c/x m/a/d/x m/b/d/x m/b/e/x", None, 0.3, "c a/d b/d e"),
  ],
)
def test_layers_of_names(names, weight, most_share, layers):
  found = layers_by_op(names.split(), weight, most_share=most_share)
  assert found == layers.split()


def test_layers_of_the_graph_go_before_names():
  # By their names, both calls of "dense" would be layers of their own.
  names = ["net_1/dense_1/x", "net_1/dense_2/x", "net/out/x", "adam/x"]
  paths = ["net/dense", "net/dense", "net/out", None]
  found = layers_by_op(names, paths=paths)
  assert found == ["dense", "dense", "out", "adam"]


@pytest.mark.parametrize("microbatch", [None, 1])
def test_updates_do_not_move_a_layer(microbatch):
  # a 0-1, b 1-2, their gradients 2-4; momentum of b: m * rate before all else.
  scope = "" if microbatch is None else "microbatch_1/"
  names = ["net/a/x", "net/b/x", "gradient_tape/net/b/x"]
  names.append("gradient_tape/net/a/x")
  ops = [OpSpec("momentum", "X", {"GPU": 9.0}, [0.0], layer="net/b")]
  for name in names:
    own = {"layer": f"net/{name[-3]}", "microbatch": microbatch}
    ops.append(OpSpec(f"{scope}{name}", "X", {"GPU": 1.0}, [0.0], **own))
  ops.append(OpSpec("update", "X", {"GPU": 1.0}, layer="net/b"))
  edges = [(1, 0, 2), (2, 0, 3), (3, 0, 4), (0, 0, 5), (3, 0, 5)]
  cluster = Cluster("c", (Device("d", "GPU"),))
  problem = Problem(build_graph("g", ops, edges), cluster)
  schedule = Simulator(problem).schedule(np.zeros(6, int))
  layers = layers_of(schedule)
  starts = forward_starts(layers, schedule)
  assert [layers.names[i] for i in np.argsort(starts)] == ["a", "b"]
