"""Layers of what no layer's call makes: updates, sums of gradients."""

import functools

import keras
import pytest
import tensorflow as tf

from tfplace.extraction.layers import with_updates
from tfplace.graph.microbatches import VariantConfig
from tfplace.keras import state
from tfplace.variants.keras_step import trace_keras

LAYERS = keras.layers
OPTIMIZERS = {
  "adam": lambda: keras.optimizers.Adam(amsgrad=True, clipnorm=1.0),
  "clipped globally": lambda: keras.optimizers.RMSprop(global_clipnorm=1.0),
  "scaled": lambda: keras.optimizers.LossScaleOptimizer(
    keras.optimizers.Adam()
  ),
}


@functools.cache
def step_of(optimizer, microbatches=1):
  """A model with a sparse gradient, moving statistics, and a used-twice
  layer; and its traced step."""
  inputs = keras.Input((6,), dtype="int32")
  twice = LAYERS.Dense(8, name="twice", kernel_regularizer="l2")
  x = LAYERS.Embedding(11, 8, name="embedding")(inputs)
  x = twice(twice(x))
  x = LAYERS.BatchNormalization(name="normalized")(x)
  model = keras.Model(inputs, LAYERS.Dense(2, name="last")(x), name="net")
  model.compile(OPTIMIZERS[optimizer](), "mse", jit_compile=False)
  config = VariantConfig(microbatches, allow_batch_statistics=True)
  return model, trace_keras(model, 6, microbatches=config)


def layer_of(path):
  """Returns the layer of a variable such as "twice/kernel"."""
  return (path.split("/")[-2], "net")


def values_assigned(traced):
  """Handle -> nodes that change its variable, and those of their values."""
  nodes = {node.name: node for node in traced.graph_def.node}
  found = {}
  for node in nodes.values():
    if node.op.startswith(("Assign", "ResourceScatter")):
      handle, *values = (x.split(":")[0] for x in node.input if x[0] != "^")
      while nodes[handle].op == "Switch":  # of the loss scale's condition
        handle = nodes[handle].input[0].split(":")[0]
      found.setdefault(handle, []).append((node.name, values[-1]))
  return found


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_update_of_a_variable_is_in_its_layer(optimizer, microbatches):
  model, traced = step_of(optimizer, microbatches)
  owners = {s.path: layer_of(v.path) for s, v in state.slots(model)}
  owners |= {v.path: layer_of(v.path) for v in model.trainable_variables}
  assert len(owners) > len(model.trainable_variables)
  assigned = values_assigned(traced)
  seen = 0
  for path, layers in owners.items():
    assert traced.layers[path] == layers, path
    for node, value in assigned.get(path, ()):
      assert traced.layers[node] == traced.layers[value] == layers, node
      seen += 1
  assert seen >= len(model.trainable_variables)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_layers_share_is_in_none(optimizer, microbatches):
  model, traced = step_of(optimizer, microbatches)
  assigned = values_assigned(traced)
  shared = {v.path for v in model.metrics_variables}
  for each in state.optimizers(model):
    shared.add(each.iterations.path)
  shared |= {x for x in traced.variables if x.endswith("learning_rate")}
  assert len(shared) > 3
  for path in shared:
    nodes = {path, *(node for node, _ in assigned.get(path, ()))}
    assert not nodes & set(traced.layers), path
  assert traced.fetches[0].split(":")[0] not in traced.layers


def graph(*nodes):
  """(name, op, inputs...) each."""
  graph_def = tf.compat.v1.GraphDef()
  for name, op, *inputs in nodes:
    graph_def.node.add(name=name, op=op, input=inputs)
  return graph_def


def test_a_sum_of_gradients_is_in_the_layer_that_needs_it():
  found = with_updates(
    graph(
      ("x", "Mul"),
      ("AddN", "AddN", "x"),
      ("AddN_1", "AddN", "x", "AddN"),
      ("gradient_tape/a/MatMul", "MatMul", "AddN"),
      ("gradient_tape/b/MatMul", "MatMul", "AddN_1"),
      ("loss", "AddN", "x"),
      ("b/Relu", "Relu", "loss"),
    ),
    {
      "gradient_tape/a/MatMul": ("a",),
      "gradient_tape/b/MatMul": ("b",),
      "b/Relu": ("b",),
    },
  )
  assert (found["AddN"], found["AddN_1"]) == (("a",), ("b",))
  assert not {"x", "loss"} & set(found)
