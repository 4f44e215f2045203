"""Real devices keep to the simulated order."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.clusters import linked
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.simulate import control_edges


def placed(kinds, edges, devices):
  """Ops "0", "1", ... of 1 us each."""
  ops = [
    OpSpec(str(i), kind, {"CPU": 1.0}, [4.0, 4.0])
    for i, kind in enumerate(kinds)
  ]
  graph = build_graph("g", ops, edges)
  problem = Problem(graph, linked(("d0", "d1"), 100.0))
  return Placement(problem, np.array(devices, np.int32))


def nodes(placement):
  graph_def = tf.compat.v1.GraphDef()
  for name in placement.problem.graph.names:
    graph_def.node.add(name=name, op="NoOp")
  return graph_def


def test_ops_of_a_device_follow_their_simulated_starts():
  # 0 feeds 1, 2, 3; 3 is on the other device, and 4 waits for 2 and 3.
  edges = [(0, 0, 1), (0, 0, 2), (0, 0, 3), (2, 0, 4), (3, 0, 4)]
  placement = placed(["Const"] + ["Relu"] * 4, edges, [0, 0, 0, 1, 0])
  first, second = control_edges.chains(placement)
  assert first.tolist() == [1, 2, 4]
  assert second.tolist() == [3]


def test_control_edges_join_neighbors_and_make_no_cycle():
  edges = [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, 0, 3)]
  placement = placed(["Const"] + ["Relu"] * 3, edges, [0] * 4)
  graph_def = nodes(placement)
  control_edges.enforce_order(graph_def, placement)
  found = {node.name: list(node.input) for node in graph_def.node}
  assert found == {"0": [], "1": [], "2": ["^1"], "3": ["^2"]}


@pytest.mark.parametrize("kind", ["Switch", "Merge", "Enter"])
def test_ops_that_may_be_dead_or_in_a_loop_are_left_out(kind):
  edges = [(0, 0, 1), (1, 0, 2), (0, 0, 3), (3, 0, 4)]
  placement = placed(["Const", kind, "Relu", "Relu", "Relu"], edges, [0] * 5)
  assert control_edges.chains(placement)[0].tolist() == [3, 4]
