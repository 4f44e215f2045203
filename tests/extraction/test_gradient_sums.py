"""Sums of gradients by device and host, and relays of variables to hosts."""

import keras
import pytest
from keras import layers

import tfplace
from tests.testing.microbatched import assert_equal, both, compiled, normal
from tfplace.graph.microbatches import (
  VariantConfig,
  microbatch_of,
  microbatches_of,
)
from tfplace.variants.keras_step import trace_keras

SUMS = {  # (microbatches, devices of each host) -> sums, by hand.
  (4, ()): (0, 1, 2, 3),
  (8, (4,)): (((0, 1), (2, 3)), ((4, 5), (6, 7))),
  (6, (4,)): (((0, 1), (2,)), ((3, 4), (5,))),
  (3, (4,)): (((0,), (1,)), (2,)),
  (8, (2, 2)): (((0, 1), (2, 3)), ((4, 5), (6, 7))),
  (6, (1, 2)): ((0, 1), ((2, 3), (4, 5))),
  (9, (3,)): (((0, 1, 2), (3, 4, 5)), (6, 7, 8)),
}


@pytest.mark.parametrize("case", SUMS, ids=str)
def test_gradients_are_added_by_device_then_by_host(case):
  count, devices = case
  assert VariantConfig(count, devices=devices).sums == SUMS[case]


@pytest.mark.parametrize(
  "preset, devices",
  [
    ("v100x1", ()),
    ("v100x4", (4,)),
    ("v100x2+p100x2", (4,)),
    ("2*v100x4+a100x8", (4, 4, 8)),
  ],
)
def test_a_cluster_says_how_gradients_are_added(preset, devices):
  cluster = tfplace.cluster_preset(preset)
  assert VariantConfig(8).over(cluster).devices == devices
  assert VariantConfig(1).over(cluster).devices == ()
  assert VariantConfig(8, devices=(2,)).over(cluster).devices == (2,)


def net():
  """A model with dense, sparse and regularized gradients."""
  tokens = keras.Input((6,), dtype="int32")
  x = layers.Embedding(50, 8, name="words")(tokens)
  x = x + layers.Embedding(6, 8, name="places")(keras.ops.arange(6))
  x = layers.SimpleRNN(5, name="rnn")(x)
  x = layers.Dense(6, "relu", kernel_regularizer="l2", name="dense")(x)
  return compiled(keras.Model(tokens, layers.Dense(3, name="last")(x)))


def nodes_of(config):
  graph_def = trace_keras(net(), 8, microbatches=config).graph_def
  return {node.name: node for node in graph_def.node}


def nested(name, nodes):
  """Microbatches that an op adds up, as `VariantConfig.sums`."""
  number = microbatch_of(name)
  if number is not None:
    return number
  parts = [nested(text.partition(":")[0], nodes) for text in nodes[name].input]
  first, second = parts
  is_fold = isinstance(first, tuple) and isinstance(second, int)
  return (*first, second) if is_fold else (first, second)


def test_the_graph_adds_in_the_order_of_the_variant():
  config = VariantConfig(8, devices=(2, 2))
  nodes = nodes_of(config)
  scope = "accumulate_on_2_and_2/last/kernel/"
  adds = [name for name in nodes if name.startswith(scope)]
  read = {text.partition(":")[0] for name in adds for text in nodes[name].input}
  (total,) = set(adds) - read
  assert len(adds) == 7
  assert nested(total, nodes) == (((0, 1), (2, 3)), ((4, 5), (6, 7)))
  assert microbatches_of(nodes) == config


def test_microbatches_of_a_host_read_its_relays():
  config = VariantConfig(8, devices=(2, 2))
  nodes = nodes_of(config)
  relays = [
    name for name, n in nodes.items() if name.startswith("relay_to_host_")
  ]
  read = {nodes[name].input[0] for name in relays}
  assert {nodes[name].op for name in relays} == {"Identity"}
  assert len(relays) == 2 * len(read)
  for name, node in nodes.items():
    number = microbatch_of(name)
    inputs = {text.removeprefix("^").partition(":")[0] for text in node.input}
    if number is not None:
      hosts = {i.partition("/")[0] for i in inputs & set(relays)}
      assert hosts <= {f"relay_to_host_{number // 4}"}
      assert not inputs & read  # The variable itself.
  dense = [n for n in relays if "last_1/Cast/" in n]
  assert sorted(n.partition("/")[0] for n in dense) == [
    "relay_to_host_0",
    "relay_to_host_1",
  ]


def test_losses_are_those_of_the_whole_step():
  def data():
    tokens = (abs(normal(6)) * 20).astype("int32")
    return tokens, normal(3)

  options = {"devices": (2, 2)}
  _, (split, whole) = both(net, data, 3, 2, options=options)
  assert_equal(split, whole)
