"""Network of Placeto (arXiv 1906.08879). Training process only (Keras 2)."""

import dataclasses
from typing import Any

import tensorflow as tf

from tfplace.learned.decisions import NEVER
from tfplace.learned.sequence import placeto_features
from tfplace.training.export import as_function
from tfplace.training.sequence.networks import Choices, Tensors, blank

# Initially the odds of a device fall with this power of a group's time on it. 2
# rules out slow CPUs, which the paper's equal GPUs do not need.
_SPEED_WEIGHT = 2.0
_SIGNATURE = {**placeto_features.SIGNATURE, **placeto_features.STATE}


@dataclasses.dataclass(frozen=True)
class PlacetoConfig:
  """Sizes of the network.

  Attributes:
    units: Width of all embeddings (the paper's code: the number of features).
    rounds: Rounds of message passing per direction (the paper's code: 8).
  """

  units: int = 8
  rounds: int = 8


class Aggregate(tf.Module):
  """Computes g(mean of f(x) over a set) with two-layer ReLU MLPs f and g.

  The paper sums; its code has means as an option. Sums over dozens of neighbors
  make the initial policy overconfident. The mean of an empty set is 0.
  """

  def __init__(self, units: int) -> None:
    super().__init__(name="aggregate")
    self._f = _mlp(units, units, activation="relu")
    self._g = _mlp(units, units, activation="relu")

  def __call__(
    self, equation: str, members: tf.Tensor, values: tf.Tensor
  ) -> tf.Tensor:
    """Aggregates by an einsum of [..., N] memberships and [N, ...] values."""
    number = tf.reduce_sum(members, axis=-1, keepdims=True)
    weights = members / tf.maximum(number, 1.0)
    return self._g(tf.einsum(equation, weights, self._f(values)))


class PlacetoNetwork(tf.Module):
  """Network from episode states to logits of the current group.

  A device is scored from embeddings in which each group has a flag for being on
  that device, and from the device features. One set of weights thus serves any
  number of devices. (The paper embeds a one-hot over all devices and has one
  output per device.)
  """

  def __init__(self, config: PlacetoConfig) -> None:
    super().__init__(name="placeto_network")
    self.config = config
    units = config.units
    self._transform = _mlp(units, units, units)
    self._messages = [Aggregate(units) for _ in ("along", "against")]
    self._poolings = [
      Aggregate(2 * units) for _ in ("ancestors", "descendants", "parallel")
    ]
    # The policy starts without preference.
    self._classifier = _mlp(
      16 * units, 8 * units, 1, kernel_initializer="zeros"
    )
    self._speed = tf.Variable(_SPEED_WEIGHT, name="speed")
    self.logits(**blank(_SIGNATURE))

  def exported_functions(self) -> dict[str, Any]:
    """Returns the functions that placers call."""
    return {"logits": as_function(self.logits, _SIGNATURE)}

  def logits(self, **given: tf.Tensor) -> tf.Tensor:
    """Computes the logits of each episode's current group.

    Args:
      given: The tensors of `PlacetoFeatures` and `STATE`.

    Returns:
      [B, D] float32, NEVER where not allowed.
    """
    step = given["step"]
    embedded = self.embed(self.observe(given), given["feeds"])
    device = given["device"][None]
    device = tf.tile(device, [tf.shape(step)[0], 1, 1])
    pooled = self.pool(embedded, given["ancestors"], step)
    score = self._classifier(tf.concat([pooled, device], axis=-1))[..., 0]
    logits = score - self._speed * tf.gather(given["slower"], step)
    return tf.where(tf.gather(given["allowed"], step), logits, NEVER)

  def kinds(self, **given: tf.Tensor) -> list[Choices]:
    """Computes logits of the `action`, one decision per state."""
    action = given.pop("action")[:, None]
    logits = self.logits(**given)[:, None]
    return [Choices(logits, action, tf.ones_like(logits[..., 0]))]

  def observe(self, given: Tensors) -> tf.Tensor:
    """Returns [N, B, D, 6] group features relative to each device."""
    node, step = given["node"], given["step"]
    number = tf.range(tf.shape(node)[0])[:, None]
    devices = tf.shape(node)[1]
    here = tf.one_hot(tf.transpose(given["placement"]), devices)
    visited, now = (
      tf.broadcast_to(tf.cast(flag, tf.float32)[..., None], tf.shape(here))
      for flag in (number < step, number == step)
    )
    state = tf.stack([visited, now, here], axis=-1)
    shape = tf.concat([tf.shape(here), [3]], axis=0)
    return tf.concat([tf.broadcast_to(node[:, None], shape), state], axis=-1)

  def embed(self, observed: tf.Tensor, feeds: tf.Tensor) -> tf.Tensor:
    """Maps [N, B, D, F] features to [N, B, D, 2 * units] embeddings."""
    first = self._transform(observed)
    embeddings = []
    for members, message in zip(
      (feeds, tf.transpose(feeds)), self._messages, strict=True
    ):
      has_any = tf.reduce_max(members, axis=1)[:, None, None, None]
      state = first
      for _ in range(self.config.rounds):
        state = message("nm,mbdf->nbdf", members, state) * has_any + first
      embeddings.append(state)
    return tf.concat(embeddings, axis=-1)

  def pool(
    self, embedded: tf.Tensor, ancestors: tf.Tensor, step: tf.Tensor
  ) -> tf.Tensor:
    """Returns [B, D, 8 * units], see `_poolings`, then the current group's."""
    before = tf.gather(ancestors, step)
    after = tf.gather(tf.transpose(ancestors), step)
    itself = tf.one_hot(step, tf.shape(ancestors)[0])
    parts = [
      pooling("bn,nbdf->bdf", members, embedded)
      for members, pooling in zip(
        (before, after, 1.0 - before - after - itself),
        self._poolings,
        strict=True,
      )
    ]
    own = tf.einsum("bn,nbdf->bdf", itself, embedded)
    return tf.concat([*parts, own], axis=-1)


def _mlp(*units: int, **last: Any) -> tf.keras.Sequential:
  """Dense layers with ReLU in between; `last` are options of the last one."""
  dense = tf.keras.layers.Dense
  hidden = [dense(size, activation="relu") for size in units[:-1]]
  return tf.keras.Sequential([*hidden, dense(units[-1], **last)])
