"""GDP placement network: features to logits (training process only)."""

import dataclasses

import tensorflow as tf

from tfplace.learned.decisions import NEVER
from tfplace.learned.encoder import features
from tfplace.learned.encoder.network import Encoder, EncoderConfig
from tfplace.learned.export import as_function
from tfplace.learned.policy_format import Exportable


@dataclasses.dataclass(frozen=True)
class NetworkConfig(EncoderConfig):
  """Sizes of the network.

  Attributes:
    pair_units: Width of the scorer of decision-device pairs.
  """

  pair_units: int = 48


class PlacementNetwork(Encoder):
  """Network from the features of one problem to logits.

  GraphSAGE over both edge directions, attention in topological order
  conditioned on the pooled graph, then a scorer f(decision, device, pair)
  shared by all devices. One set of weights serves any graph and number of
  devices. Follows GDP (arXiv 1910.01578); the device-aware scorer is ours.
  """

  def __init__(self, config: NetworkConfig | None = None) -> None:
    config = config or NetworkConfig()
    super().__init__(config, "placement_network")
    self._pair_units = config.pair_units
    dense = tf.keras.layers.Dense
    self._of_node = dense(config.pair_units)
    self._of_device = dense(config.pair_units, use_bias=False)
    self._of_pair = dense(config.pair_units, use_bias=False)
    self._scorer = dense(config.pair_units, activation="relu")
    self._score = dense(1)
    self._query = dense(config.pair_units, use_bias=False)
    self._key = dense(config.pair_units, use_bias=False)

  def call(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Maps `Features.tensors()` of one problem to [N, D] masked logits."""
    state, graph = self.encode(inputs)
    device = tf.concat(
      [inputs["device"], tf.repeat(graph, tf.shape(inputs["device"])[0], 0)],
      axis=-1,
    )
    logits = self.run(self._scores, state, inputs["pair"], device)
    return tf.where(inputs["allowed"], logits, NEVER)

  def _scores(
    self, state: tf.Tensor, pair: tf.Tensor, device: tf.Tensor
  ) -> tf.Tensor:
    """Maps [N, units] states and [N, D, F] pairs to [N, D] logits."""
    joined = (
      self._of_node(state)[:, None]
      + self._of_device(device)[None]
      + self._of_pair(pair)
    )
    logits = self._score(self._scorer(tf.nn.relu(joined)))[..., 0]
    # The product of decision and device lets the preferences of neighbors
    # differ from the first step on. The sum alone learns that slowly.
    product = tf.matmul(self._query(state), self._key(device), transpose_b=True)
    return logits + product * self._pair_units**-0.5


def exportable(network: PlacementNetwork) -> Exportable:
  """Exports `logits`: `Features.tensors()`, in order -> [N, D]."""
  signature = features.signature(network.config.axes)
  return Exportable(
    strategy="gdp",
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={"logits": as_function(lambda **seen: network(seen), signature)},
  )
