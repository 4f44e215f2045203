"""The network of Placeto (arXiv 1906.08879), in plain matrix products.

Message passing along and against the edges, poolings from the current group's
point of view, a classifier. For the training process only (Keras 2).
"""

import dataclasses

from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402

NEVER = -1e9  # logit of a device that cannot run the group
STATE = ("placement", "start", "step")


@dataclasses.dataclass(frozen=True)
class PlacetoNetworkConfig:
  """Sizes of the network.

  Attributes:
    units: width of every embedding (the paper's code: as many as features).
    rounds: of message passing, in each direction (the paper's code: 8).
    mean_poolings: poolings are divided by the number of groups in them (an
      option of the paper's code), so that graphs of 10 and of 256 groups look
      alike.
  """

  units: int = 16
  rounds: int = 8
  mean_poolings: bool = True


class Aggregate(tf.keras.layers.Layer):
  """g(sum of f(x) over a set); f and g are two layers each, with ReLU."""

  def __init__(self, units: int) -> None:
    super().__init__()
    self._f = _mlp(units, units, last="relu")
    self._g = _mlp(units, units, last="relu")

  def call(self, inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
    """[..., R, N] weights and [..., N, K, units] states -> [..., R, K, units].

    K rides along: states of several placements, or seen from several devices.
    """
    weights, state = inputs
    terms = self._f(state)
    shape = tf.shape(terms)
    flat = tf.reshape(terms, tf.concat([shape[:-2], [-1]], axis=0))
    summed = tf.matmul(weights, flat)
    rows = tf.shape(summed)[:-1]
    return self._g(tf.reshape(summed, tf.concat([rows, shape[-2:]], axis=0)))


class PlacetoNetwork(tf.keras.layers.Layer):
  """States of episodes on one problem to logits of the current group.

  A device is scored from embeddings in which every group knows whether it is
  on that device; the classifier also sees the device's own features. So one
  set of weights serves any number of devices. (The paper embeds a one-hot of
  all devices and has one output per device.)
  """

  def __init__(self, config: PlacetoNetworkConfig | None = None) -> None:
    super().__init__(name="placeto_network")
    self.config = config = config or PlacetoNetworkConfig()
    units = config.units
    self._transform = _mlp(units, units, units)
    self._messages = [Aggregate(units) for _ in ("along", "against")]
    self._poolings = [
      Aggregate(2 * units) for _ in ("ancestors", "descendants", "parallel")
    ]
    size = 4 * 2 * units
    self._classifier = _mlp(2 * size, size, last="relu")
    self._score = tf.keras.layers.Dense(1)

  def call(
    self, inputs: tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]
  ) -> tf.Tensor:
    """Logits of the devices for each episode's current group.

    Args:
      inputs: `PlacetoFeatures.tensors()`, and the state of B episodes:
        `placement` [B, N] int32 devices; `start` [B, N] float32 shares of the
        step time; `step` [B] int32 current group, those before it are visited.

    Returns:
      [B, D] float32, NEVER where not allowed.
    """
    graph, state = inputs
    embedded = self.embed(self.features(graph, state), graph["feeds"])
    pooled = self.pool(embedded, graph["ancestors"], state["step"])
    device = tf.repeat(graph["device"][None], tf.shape(pooled)[0], axis=0)
    hidden = self._classifier(tf.concat([pooled, device], axis=-1))
    logits = self._score(hidden)[..., 0]
    allowed = tf.gather(graph["allowed"], state["step"])
    return tf.where(allowed, logits, NEVER)

  def features(
    self, graph: dict[str, tf.Tensor], state: dict[str, tf.Tensor]
  ) -> tf.Tensor:
    """[N, B, D, 7]: what each group knows, seen from each device."""
    step, start = state["step"], state["start"]
    count = tf.shape(graph["feeds"])[0]
    number = tf.range(count)[:, None]
    now = tf.gather(start, step, batch_dims=1)
    per_state = tf.stack(
      [
        tf.cast(number < step[None], tf.float32),
        tf.cast(number == step[None], tf.float32),
        tf.transpose(start - now[:, None]),
      ],
      axis=-1,
    )
    devices = tf.shape(graph["device"])[0]
    here = tf.one_hot(tf.transpose(state["placement"]), devices)
    shape = tf.shape(here)

    def spread(values: tf.Tensor) -> tf.Tensor:
      return tf.broadcast_to(
        values, tf.concat([shape, [values.shape[-1]]], axis=0)
      )

    return tf.concat(
      [
        spread(graph["node"][:, None, None]),
        spread(per_state[:, :, None]),
        here[..., None],
        spread(graph["on_device"][:, None, :, None]),
      ],
      axis=-1,
    )

  def embed(self, given: tf.Tensor, feeds: tf.Tensor) -> tf.Tensor:
    """[N, B, D, F] features -> [N, B, D, 2 * units] embeddings."""
    shape = tf.shape(given)
    flat = tf.reshape(given, [shape[0], -1, given.shape[-1]])
    first = self._transform(flat)
    found = []
    for weights, message in zip(
      (feeds, tf.transpose(feeds)), self._messages, strict=True
    ):
      has_any = tf.reduce_max(weights, axis=1)[:, None, None]
      state = first
      for _ in range(self.config.rounds):
        state = message((weights, state)) * has_any + first
      found.append(state)
    joined = tf.concat(found, axis=-1)
    return tf.reshape(
      joined, tf.concat([shape[:-1], [joined.shape[-1]]], axis=0)
    )

  def pool(
    self, embedded: tf.Tensor, ancestors: tf.Tensor, step: tf.Tensor
  ) -> tf.Tensor:
    """[N, B, D, 2U] embeddings -> [B, D, 8U]: three poolings and the own one.

    A pooling over no group is that of zeros.
    """
    count = tf.shape(ancestors)[0]
    before = tf.gather(ancestors, step)
    after = tf.gather(tf.transpose(ancestors), step)
    itself = tf.one_hot(step, count)
    beside = 1.0 - before - after - itself
    state = tf.transpose(embedded, [1, 0, 2, 3])
    parts = []
    for weights, pooling in zip(
      (before, after, beside), self._poolings, strict=True
    ):
      members = tf.reduce_sum(weights, axis=1, keepdims=True)
      shared = tf.maximum(members, 1.0) if self.config.mean_poolings else 1.0
      parts.append(pooling(((weights / shared)[:, None], state))[:, 0])
    parts.append(tf.gather(state, step, batch_dims=1))
    return tf.concat(parts, axis=-1)


def _mlp(*units: int, last: str | None = None) -> tf.keras.Sequential:
  """Dense layers with ReLU between them, and `last` after them."""
  activations = ["relu"] * (len(units) - 1) + [last]
  return tf.keras.Sequential(
    [
      tf.keras.layers.Dense(width, activation=activation)
      for width, activation in zip(units, activations, strict=True)
    ]
  )
