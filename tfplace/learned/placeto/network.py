"""Network of Placeto (arXiv 1906.08879). Training process only (Keras 2)."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfplace.learned.decisions import NEVER
from tfplace.learned.export import as_function
from tfplace.learned.placeto import features
from tfplace.learned.policy_format import Exportable

STATE = ("placement", "start", "step")


@dataclasses.dataclass(frozen=True)
class PlacetoNetworkConfig:
  """Sizes of the network.

  Attributes:
    units: Width of all embeddings (the paper's code: the number of features,
      here 7).
    rounds: Rounds of message passing per direction (the paper's code: 8).
    speed_weight: Initially the odds of a device fall with this power of a
      group's time on it. 2 rules out slow CPUs, which the paper's equal GPUs do
      not need.
  """

  units: int = 8
  rounds: int = 8
  speed_weight: float = 2.0


class Mlp(tf.keras.layers.Layer):
  """Dense layers with ReLU in between and, optionally, at the end.

  Operates on rows [R, units], one fast matrix product per layer. `is_score`
  scales initial outputs to almost 0, so that the policy starts without
  preference.
  """

  def __init__(
    self, *units: int, ends_in_relu: bool = False, is_score: bool = False
  ) -> None:
    super().__init__()
    self._units = units
    self._end_scale = 0.01 if is_score else 1.0
    self._relus = [True] * (len(units) - 1) + [ends_in_relu]

  def build(self, shape: tf.TensorShape) -> None:
    """Creates Glorot weights and zero biases, as in the paper's code."""
    self._layers = []
    before = shape[-1]
    for i, units in enumerate(self._units):
      is_last = i == len(self._units) - 1
      glorot = tf.keras.initializers.VarianceScaling(
        self._end_scale if is_last else 1.0, "fan_avg", "uniform"
      )
      kernel = self.add_weight(
        f"kernel{i}", (before, units), initializer=glorot
      )
      bias = self.add_weight(f"bias{i}", (units,), initializer="zeros")
      self._layers.append((kernel, bias))
      before = units

  def call(self, rows: tf.Tensor) -> tf.Tensor:
    """Maps [R, input units] to [R, units[-1]]."""
    for (kernel, bias), relu in zip(self._layers, self._relus, strict=True):
      rows = tf.nn.bias_add(tf.matmul(rows, kernel), bias)
      rows = tf.nn.relu(rows) if relu else rows
    return rows


class Aggregate(tf.keras.layers.Layer):
  """Computes g(sum of f(x) over a set) with two-layer ReLU MLPs f and g."""

  def __init__(self, units: int) -> None:
    super().__init__()
    self._f = Mlp(units, units, ends_in_relu=True)
    self._g = Mlp(units, units, ends_in_relu=True)

  def call(
    self, rows: tf.Tensor, sum_over: Callable[[tf.Tensor], tf.Tensor]
  ) -> tf.Tensor:
    """Maps [R, units] members to [S, units], one row per set.

    `sum_over` maps [R, units] to the [S, units] sums of the members of each
    set.
    """
    return self._g(sum_over(self._f(rows)))


class PlacetoNetwork(tf.keras.layers.Layer):
  """Network from episode states to logits of the current group.

  A device is scored from embeddings in which each group has a flag for being on
  that device, and from the device features. One set of weights thus serves any
  number of devices. (The paper embeds a one-hot over all devices and has one
  output per device.)
  """

  def __init__(self, config: PlacetoNetworkConfig | None = None) -> None:
    super().__init__(name="placeto_network")
    self.config = config = config or PlacetoNetworkConfig()
    units = config.units
    self._transform = Mlp(units, units, units)
    self._messages = [Aggregate(units) for _ in ("along", "against")]
    self._poolings = [
      Aggregate(2 * units) for _ in ("ancestors", "descendants", "parallel")
    ]
    size = 4 * 2 * units
    self._classifier = Mlp(2 * size, size, 1, is_score=True)
    self._speed = self.add_weight(
      "speed",
      shape=(),
      initializer=tf.keras.initializers.Constant(config.speed_weight),
    )

  def call(
    self, inputs: tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]
  ) -> tf.Tensor:
    """Computes the logits of each episode's current group.

    Args:
      inputs: `PlacetoFeatures.tensors()`, and the state of B episodes:
        `placement` [B, N] int32 devices, `start` [B, N] float32 fractions of
        the step time, `step` [B] int32 current group. Groups before it are
        visited.

    Returns:
      [B, D] float32, NEVER where not allowed.
    """
    graph, state = inputs
    rows = self.embed(self.features(graph, state), graph["feeds"])
    batch, devices = tf.shape(state["step"])[0], tf.shape(graph["device"])[0]
    pooled = self.pool(rows, graph["ancestors"], state["step"], devices)
    device = tf.tile(graph["device"], [batch, 1])
    score = self._classifier(tf.concat([pooled, device], axis=-1))
    slower = tf.gather(graph["slower"], state["step"])
    logits = tf.reshape(score, [batch, devices]) - self._speed * slower
    allowed = tf.gather(graph["allowed"], state["step"])
    return tf.where(allowed, logits, NEVER)

  def features(
    self, graph: dict[str, tf.Tensor], state: dict[str, tf.Tensor]
  ) -> tf.Tensor:
    """Returns [N, B, D, 7] group features relative to each device."""
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
    """Maps [N, B, D, F] features to [N * B * D, 2 * units] embeddings."""
    first = self._transform(tf.reshape(given, [-1, given.shape[-1]]))
    count, units = tf.shape(feeds)[0], self.config.units
    found = []
    for adjacency, message in zip(
      (feeds, tf.transpose(feeds)), self._messages, strict=True
    ):
      weights = self._weights(adjacency)

      def over_neighbors(
        rows: tf.Tensor, weights: tf.Tensor = weights
      ) -> tf.Tensor:
        wide = tf.matmul(weights, tf.reshape(rows, [count, -1]))
        return tf.reshape(wide, [-1, units])

      has_any = tf.reduce_max(adjacency, axis=1)
      has_any = tf.repeat(has_any, tf.shape(first)[0] // count)[:, None]
      state = first
      for _ in range(self.config.rounds):
        state = message(state, over_neighbors) * has_any + first
      found.append(state)
    return tf.concat(found, axis=-1)

  def pool(
    self,
    rows: tf.Tensor,
    ancestors: tf.Tensor,
    step: tf.Tensor,
    devices: tf.Tensor,
  ) -> tf.Tensor:
    """Concatenates three poolings and the current group's embedding.

    The pooling of an empty set is g(0).

    Args:
      rows: [N * B * D, 2 * units] embeddings.
      ancestors: [N, N], see `PlacetoFeatures`.
      step: [B] current group.
      devices: Scalar D.

    Returns:
      [B * D, 8 * units].
    """
    count, units = tf.shape(ancestors)[0], 2 * self.config.units
    shape = [count, tf.shape(step)[0], devices, units]
    before = tf.gather(ancestors, step)
    after = tf.gather(tf.transpose(ancestors), step)
    itself = tf.one_hot(step, count)
    beside = 1.0 - before - after - itself
    parts = []
    for members, pooling in zip(
      (before, after, beside), self._poolings, strict=True
    ):
      weight = tf.transpose(self._weights(members))[:, :, None, None]

      def over_members(
        found: tf.Tensor, weight: tf.Tensor = weight
      ) -> tf.Tensor:
        summed = tf.reduce_sum(weight * tf.reshape(found, shape), axis=0)
        return tf.reshape(summed, [-1, units])

      parts.append(pooling(rows, over_members))
    state = tf.transpose(tf.reshape(rows, shape), [1, 0, 2, 3])
    own = tf.gather(state, step, batch_dims=1)
    return tf.concat([*parts, tf.reshape(own, [-1, units])], axis=-1)

  def _weights(self, members: tf.Tensor) -> tf.Tensor:
    """Converts [S, N] memberships to weights of a mean.

    The paper's code uses means as an option for poolings. Sums over dozens of
    neighbors in messages make the initial policy overconfident.
    """
    number = tf.reduce_sum(members, axis=1, keepdims=True)
    return members / tf.maximum(number, 1.0)


def exportable(network: PlacetoNetwork) -> Exportable:
  """Exports `logits`: features and states of B episodes -> [B, D]."""

  def logits(**given: tf.Tensor) -> tf.Tensor:
    state = {name: given.pop(name) for name in STATE}
    return network((given, state))

  return Exportable(
    strategy="placeto",
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={"logits": as_function(logits, features.SIGNATURE)},
  )
