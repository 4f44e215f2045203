"""Layers by the scopes in op names."""

import numpy as np
import pytest

from tfplace.report.explain.layers import OTHER, find_layers


def layers_of(names, weight=None):
  weight = np.ones(len(names)) if weight is None else np.array(weight)
  layers = find_layers(names, weight)
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
def test_the_layer_of_a_name(name, layer):
  body = ["m/conv/Conv2D", "m/dense/MatMul", "m/step_0/lstm/MatMul"] * 9
  assert layers_of([name, *body])[0] == layer


def test_a_model_in_a_model_is_opened():
  names = ["outer/inner/a/x", "outer/inner/b/x", "outer/inner/c/x", "opt/x"]
  assert layers_of(names) == ["a", "b", "c", "opt"]


@pytest.mark.parametrize(
  "name, layer",
  [
    ("net/left_conv2/kernel", "left_conv2"),
    ("net_1/left_conv2_1/Conv2D", "left_conv2"),
    ("gradient_tape/net_1/left_conv2_1/Conv2D/Backprop", "left_conv2"),
    ("net_1/dense_1/MatMul", "dense"),
    ("net_1/dense_1_2/MatMul", "dense_1"),
    ("net_1/dense_3/MatMul", "dense"),  # its second call
    ("net_1/relu_1/Relu", "relu"),  # has no variables
    ("mse_1/Mean", "mse_1"),
  ],
)
@pytest.mark.parametrize("owner", ["net/", ""])
def test_layers_of_keras_have_the_names_of_their_variables(name, layer, owner):
  variables = [
    f"{owner}{layer}/kernel" for layer in ("left_conv2", "dense", "dense_1")
  ]
  ops = ["net_1/left_conv2_1/Conv2D", "net_1/dense_1/MatMul"] * 9
  named = name.replace("net/", owner, 1)
  assert layers_of([named, *variables, *ops])[0] == layer


@pytest.mark.parametrize("model", ["m/", "m_1/", ""])
def test_a_number_that_a_user_gave_is_kept(model):
  names = [f"{model}{layer}/x" for layer in ("conv_1", "conv_2")]
  assert layers_of(names * 9)[:2] == ["conv_1", "conv_2"]


def test_what_weighs_decides_which_scope_is_the_model():
  names = ["m/a/x", "m/b/x"] + ["adam/update/x"] * 50
  assert layers_of(names, [10.0, 10.0] + [0.01] * 50)[:2] == ["a", "b"]


def test_without_scopes_each_op_is_a_layer():
  assert layers_of(["x", "y", "z"]) == ["x", "y", "z"]


def test_no_ops_have_no_layers():
  assert find_layers([], np.zeros(0)).names == ()


def test_what_the_graph_knows_of_layers_goes_before_names():
  # By their names, both calls of "dense" would be layers of their own.
  names = [
    "net_1/dense_1/MatMul",
    "net_1/dense_2/MatMul",
    "net/out/x",
    "adam/x",
  ]
  paths = ["net/dense", "net/dense", "net/out", None]
  layers = find_layers(names, np.ones(4), paths)
  assert [layers.names[i] for i in layers.layer_of] == [
    "dense",
    "dense",
    "out",
    "adam",
  ]


def test_a_heavy_inner_model_is_divided_on_request():
  names = [
    "model/backbone/block_0/MatMul",
    "model/backbone/block_1/MatMul",
    "model/head/MatMul",
    "model/other/MatMul",
  ]
  weight = np.array([3.0, 2.0, 3.0, 2.0])
  whole = find_layers(names, weight)
  assert whole.names == ("backbone", "head", "other")
  divided = find_layers(names, weight, most_share=0.4)
  assert divided.names == ("block_0", "block_1", "head", "other")
  kept = find_layers(names, weight, most_share=0.6)
  assert kept.names == whole.names


def test_layers_of_the_same_name_are_apart():
  # The model has two halves of two blocks each; a block is "0" or "1".
  names = [
    f"model/{half}/{block}/MatMul" for half in ("a", "b") for block in "01"
  ]
  divided = find_layers(names, np.ones(4), most_share=0.3)
  assert divided.names == ("a/0", "a/1", "b/0", "b/1")
  assert divided.layer_of.tolist() == [0, 1, 2, 3]


def test_a_number_alone_is_no_name():
  names = [f"model/blocks/{block}/MatMul" for block in range(3)]
  assert find_layers(names, np.ones(3)).names == (
    "blocks/0",
    "blocks/1",
    "blocks/2",
  )


def test_a_name_that_is_unique_stays_short():
  names = ["m/a/conv/x", "m/a/dense/x", "m/b/dense/x", "m/b/out/x"]
  divided = find_layers(names, np.ones(4), most_share=0.3)
  assert divided.names == ("conv", "a/dense", "b/dense", "out")
