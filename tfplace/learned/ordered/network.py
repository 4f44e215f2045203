"""Network that decides in order, as in `decoding` (training process only)."""

import dataclasses

import tensorflow as tf

from tfplace.learned.decisions import NEVER
from tfplace.learned.encoder import features
from tfplace.learned.encoder.network import Encoder, EncoderConfig
from tfplace.learned.export import as_function
from tfplace.learned.ordered.decoding import FEATURES
from tfplace.learned.policy_format import Exportable


@dataclasses.dataclass(frozen=True)
class OrderedConfig(EncoderConfig):
  """Sizes of the network; the cost of the decoder grows with them.

  Attributes:
    wide: Width of the first layer of the head.
    narrow: Width of the second layer.
  """

  wide: int = 32
  narrow: int = 16


class OrderedNetwork(Encoder):
  """Graph network with a head shared by all decisions and devices."""

  def __init__(self, config: OrderedConfig | None = None) -> None:
    config = config or OrderedConfig()
    super().__init__(config, "ordered_network")
    dense = tf.keras.layers.Dense
    self._context = dense(config.wide)
    self._slope = dense(FEATURES, kernel_initializer="zeros")
    self._first = self._head("first", (FEATURES, config.wide))
    self._second = self._head("second", (config.wide, config.narrow))
    self._bias = self._head("bias", (config.narrow,), "zeros")
    self._last = self._head("last", (config.narrow, 1))

  def _head(
    self, name: str, shape: tuple[int, ...], start: str = "glorot_uniform"
  ) -> tf.Variable:
    return self.add_weight(name=name, shape=shape, initializer=start)

  def call(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Maps `Features.tensors()` to [N, wide] contexts, [N, FEATURES] slopes."""
    state, graph = self.encode(inputs)
    devices = tf.reduce_mean(inputs["device"], axis=0, keepdims=True)
    contexts = tf.concat([graph, devices], axis=1)
    contexts = tf.repeat(contexts, tf.shape(state)[0], axis=0)
    joined = tf.concat([state, contexts], axis=1)
    return self._context(joined), self._slope(joined)

  def logits(
    self,
    contexts: tuple[tf.Tensor, tf.Tensor],
    observed: tf.Tensor,
    candidates: tf.Tensor,
  ) -> tf.Tensor:
    """Computes [..., N, D] logits like `decoding.decode`.

    Args:
      contexts: Result of `call`.
      observed: [..., N, D, FEATURES].
      candidates: [..., N, D] bool.
    """
    context, slope = contexts
    hidden = tf.tensordot(observed, self._first, 1) + context[:, None]
    hidden = tf.tensordot(tf.nn.relu(hidden), self._second, 1) + self._bias
    score = tf.tensordot(tf.nn.relu(hidden), self._last, 1)[..., 0]
    score += tf.reduce_sum(observed * slope[:, None], axis=-1)
    return tf.where(candidates, score, NEVER)

  def head(self) -> tuple[tf.Tensor, ...]:
    """Returns the weights of `decoding.Head` after the slope."""
    weights = self._first, self._second, self._bias, self._last[:, 0]
    return tuple(tf.convert_to_tensor(weight) for weight in weights)


def exportable(network: OrderedNetwork) -> Exportable:
  """Exports `contexts` (features -> contexts, slopes) and `head` (weights)."""
  signature = features.signature(network.config.axes)
  return Exportable(
    strategy="ordered",
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={
      "contexts": as_function(lambda **observed: network(observed), signature),
      "head": as_function(network.head, {}),
    },
  )
