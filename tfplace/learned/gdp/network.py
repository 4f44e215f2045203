"""The GDP placement network: a problem's features to logits per device.

For a training process only.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tfplace.learned.export import as_function
from tfplace.learned.exported import Exportable
from tfplace.learned.gdp import features, layers
from tfplace.learned.train import tfgnn

NEVER = -1e9  # logit of a device that cannot run the decision


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
  """Sizes of the network. GDP publishes none; chosen small, to train on CPUs.

  Attributes:
    units: width of every hidden state.
    type_units: width of the embedding of op types.
    sage_layers: rounds of message passing (a public re-creation of GO has 2).
    attention_layers: segment-recurrent layers (the re-creation has 3).
    heads: attention heads.
    segment: decisions per segment (the re-creation has 256).
    pair_units: width of the scorer of a decision on a device.
    axes: of the ops' names, whose features it sees.
  """

  units: int = 64
  type_units: int = 16
  sage_layers: int = 3
  attention_layers: int = 2
  heads: int = 4
  segment: int = 128
  pair_units: int = 48
  axes: int = 3


class PlacementNetwork(tf.keras.layers.Layer):
  """Features of one problem to logits.

  GraphSAGE over both directions of the links, attention over the topological
  order conditioned on the pooled graph, then a scorer shared by all devices:
  f(decision, device, decision on device). So one set of weights serves any
  graph and any number of devices (GDP, arXiv 1910.01578; the device-aware
  scorer is tfplace's own).
  """

  def __init__(self, config: NetworkConfig | None = None) -> None:
    super().__init__(name="placement_network")
    config = config or NetworkConfig()
    self.config = config
    dense = tf.keras.layers.Dense
    self._types = tf.keras.layers.Embedding(
      features.TYPE_VOCABULARY, config.type_units
    )
    self._node = dense(config.units, activation="relu")
    self._sage = [
      layers.sage_layer(config.units) for _ in range(config.sage_layers)
    ]
    self._graph = dense(config.units, activation="tanh")
    self._gates = [
      dense(config.units, activation="sigmoid")
      for _ in range(config.attention_layers)
    ]
    self._attention = [
      layers.SegmentAttention(config.units, config.heads, config.segment)
      for _ in range(config.attention_layers)
    ]
    self._of_node = dense(config.pair_units)
    self._of_device = dense(config.pair_units, use_bias=False)
    self._of_pair = dense(config.pair_units, use_bias=False)
    self._scorer = dense(config.pair_units, activation="relu")
    self._score = dense(1)
    self._query = dense(config.pair_units, use_bias=False)
    self._key = dense(config.pair_units, use_bias=False)

  def prepare(self, inputs: dict[str, tf.Tensor]) -> None:
    """Makes the variables, by one decision: must come before a call that
    recomputes, whose loop could not make them."""
    links = ("edge", "edge_src", "edge_dst")
    kept = {name: inputs[name][:0] for name in links}
    for name in ("type_id", "node", "pair", "allowed"):
      kept[name] = inputs[name][:1]
    self({**inputs, **kept})

  def call(
    self, inputs: dict[str, tf.Tensor], recomputes: bool = False
  ) -> tf.Tensor:
    """`Features.tensors()` of one problem -> [N, D] masked logits.

    With `recomputes`, gradients cost a second computation instead of memory.
    """
    state = self._embed(inputs, recomputes)
    run = layers.recomputed if recomputes else layers.whole
    pooled = tf.concat(
      [tf.reduce_mean(state, axis=0), tf.reduce_max(state, axis=0)], axis=0
    )
    graph = self._graph(pooled[None])
    for gate, attention in zip(self._gates, self._attention, strict=True):
      # Twice the sigmoid, so that a gate starts at 1.
      state = attention(state, 2.0 * gate(graph)[0], run)
    state = _spread(state)
    device = tf.concat(
      [inputs["device"], tf.repeat(graph, tf.shape(inputs["device"])[0], 0)],
      axis=-1,
    )
    rows = [state, inputs["pair"]]
    logits = run(self._scores, rows, [device], layers.BLOCK)
    return tf.where(inputs["allowed"], logits, NEVER)

  def _scores(self, start: Any, rows: Any, shared: Any) -> tf.Tensor:
    """[B, units] states and [B, D, F] pairs -> [B, D] logits."""
    (state, pair), (device,) = rows, shared
    joined = (
      self._of_node(state)[:, None]
      + self._of_device(device)[None]
      + self._of_pair(pair)
    )
    logits = self._score(self._scorer(tf.nn.relu(joined)))[..., 0]
    # The product of decision and device lets neighbours differ in their
    # preferences from the first step on; the sum alone learns that slowly.
    product = tf.matmul(self._query(state), self._key(device), transpose_b=True)
    return logits + product * self.config.pair_units**-0.5

  def _embed(self, inputs: dict[str, tf.Tensor], recomputes: bool) -> tf.Tensor:
    """[N, units] states after message passing."""
    types = self._types(inputs["type_id"])
    state = self._node(tf.concat([inputs["node"], types], axis=-1))
    links = inputs["edge"], inputs["edge_src"], inputs["edge_dst"]
    for layer in self._sage:

      def passed(state: tf.Tensor, layer: Any = layer) -> tf.Tensor:
        graph = layer(layers.graph_tensor(state, *links))
        return graph.node_sets[layers.NODES][tfgnn.HIDDEN_STATE]

      state = (tf.recompute_grad(passed) if recomputes else passed)(state)
    return state


def _spread(state: tf.Tensor) -> tf.Tensor:
  """[N, units] states -> the same with mean 0 and variance 1 over decisions:
  what all have in common says nothing about which should part."""
  mean, variance = tf.nn.moments(state, axes=[0], keepdims=True)
  return (state - mean) * tf.math.rsqrt(variance + 1e-6)


def exportable(network: PlacementNetwork) -> Exportable:
  """`logits`: `Features.tensors()` in order -> [N, D]."""
  signature = features.signature(network.config.axes)
  return Exportable(
    strategy="gdp",
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={"logits": as_function(lambda **seen: network(seen), signature)},
  )
