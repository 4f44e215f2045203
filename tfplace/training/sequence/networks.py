"""Networks of the recurrent placers (training process only).

The RNN-based network is from Mirhoseini et al. (2017), the hierarchical one
from HDP (2018), with the sizes of TensorFlow's `hierarchical_controller`.
"""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.decisions import NEVER
from tfplace.learned.sequence import features
from tfplace.training.export import as_function


@dataclasses.dataclass(frozen=True)
class Choices:
  """Logits and choices of one kind of decision.

  Attributes:
    logits: [B or 1, K, C], large negative where not allowed.
    chosen: [B, K] int32.
    weight: [B or 1, K] float32, 0 for a decision without effect.
  """

  logits: tf.Tensor
  chosen: tf.Tensor
  weight: tf.Tensor

  def log_probs(self) -> tf.Tensor:
    """Returns [B, K] log-probabilities of the choices."""
    every = tf.nn.log_softmax(self.logits)
    if self.logits.shape[0] != 1:
      return tf.gather(every, self.chosen, batch_dims=2)
    # Placements share the logits; gathering by decision avoids copies.
    by_decision = tf.transpose(self.chosen)
    return tf.transpose(tf.gather(every[0], by_decision, batch_dims=1))

  def mean(self, values: tf.Tensor) -> tf.Tensor:
    """Averages [B, K] values over decisions, weighted, to [B]."""
    total = tf.maximum(tf.reduce_sum(self.weight, axis=1), 1e-9)
    return tf.reduce_sum(values * self.weight, axis=1) / total

  def loss(self, advantages: tf.Tensor, smoothing: tf.Tensor) -> tf.Tensor:
    """Computes the policy gradient loss.

    With advantages of 1 it is a cross-entropy.

    Args:
      advantages: [B], shared by all decisions of a placement.
      smoothing: Share of the weight that is spread over the allowed choices.
    """
    every = tf.nn.log_softmax(self.logits)
    allowed = tf.cast(every > -1e8, tf.float32)
    total = tf.reduce_sum(allowed * every, axis=-1)
    spread = smoothing * total / tf.maximum(tf.reduce_sum(allowed, -1), 1.0)
    log_probs = (1.0 - smoothing) * self.log_probs() + spread
    return -tf.reduce_mean(self.mean(log_probs) * advantages)

  def entropy(self) -> tf.Tensor:
    """Returns the mean entropy per decision in nats."""
    log_probs = tf.nn.log_softmax(self.logits)
    terms = tf.where(log_probs > -1e8, tf.exp(log_probs) * log_probs, 0.0)
    return -tf.reduce_mean(self.mean(tf.reduce_sum(terms, axis=-1)))


def advantages(returns: np.ndarray) -> np.ndarray:
  """Standardizes [B, ...] returns by the samples of the same step."""
  off = returns - returns.mean(axis=0)
  return (off / (off.std() + 1e-6)).astype(np.float32)


class Seq2Seq(tf.Module):
  """Encoder, attention and decoder over S steps.

  The decoder starts from the last encoder state. Its input is the device of the
  previous step (zeros at the first step) and, unlike in the papers, the encoder
  state of its own step. It attends to all encoder states as in Bahdanau et al.
  (2015). The papers learn an embedding and a softmax row per device. Here both
  are linear in the device features, which include the rank of the device within
  its kind.

  Args:
    units: Size of the encoder and decoder states.
    is_bidirectional: Whether the encoder reads both ways, with half of the
      units each.
  """

  def __init__(self, units: int, is_bidirectional: bool) -> None:
    super().__init__(name="seq2seq")
    layers = tf.keras.layers
    self._units = units
    # `layers.LSTM` would export ops of cuDNN.
    cell = layers.LSTMCell(units // 2 if is_bidirectional else units)
    encoder = layers.RNN(cell, return_sequences=True, return_state=True)
    if is_bidirectional:
      encoder = layers.Bidirectional(encoder)
    self._encoder = encoder
    self._decoder = layers.LSTMCell(units)
    self._attention = layers.AdditiveAttention()
    self._memory = layers.Dense(units, use_bias=False)
    self._query = layers.Dense(units, use_bias=False)
    self._device = layers.Dense(units, use_bias=False)
    self._softmax = layers.Dense(2 * units, use_bias=False)

  def __call__(
    self,
    steps: tf.Tensor,
    device: tf.Tensor,
    allowed: tf.Tensor,
    noise: tf.Tensor,
    *,
    choices: tf.Tensor | None = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes the devices that maximize logits plus noise, step by step.

    Zero noise decodes greedily; Gumbel noise yields samples.

    Args:
      steps: [B, S, F], or [1, S, F] for all placements.
      device: [D, device features].
      allowed: [B or 1, S, D] bool.
      noise: [B, S, D] float32.
      choices: [B, S] int32 devices to take instead of those decoded.

    Returns:
      [B, S] int32 devices, and [B, S, D] logits, each given the devices before
      it, `NEVER` where not allowed.
    """
    shape = tf.shape(noise)
    batch, count, devices = tf.unstack(shape)
    given = tf.fill([batch, count], -1) if choices is None else choices
    states, *last = self._encoder(steps)
    h, c = (
      tf.broadcast_to(tf.concat(part, -1), [batch, self._units])
      for part in (last[::2], last[1::2])
    )
    memory, keys = self._memory(states), tf.transpose(self._softmax(device))
    table = tf.pad(self._device(device), [[0, 1], [0, 0]])

    def step(before: tuple, now: tuple) -> tuple:
      choice, _, h, c = before
      own, allowed, noise, given = now
      signal = tf.concat([tf.gather(table, choice), own], axis=1)
      _, (h, c) = self._decoder(signal, [h, c])
      query = self._query(h)[:, None]
      context = self._attention([query, memory])[:, 0]
      logits = tf.concat([h, context], axis=1) @ keys
      logits = tf.where(allowed, logits, NEVER)
      free = tf.argmax(logits + noise, axis=1, output_type=tf.int32)
      return tf.where(given < 0, free, given), logits, h, c

    own = tf.broadcast_to(states, [batch, count, self._units])
    every = (own, tf.broadcast_to(allowed, shape), noise, given)
    decoded, logits, *_ = tf.scan(
      step,
      tuple(_by_step(values) for values in every),
      (tf.fill([batch], devices), tf.zeros([batch, devices]), h, c),
    )
    return tf.transpose(decoded), _by_step(logits)


def _by_step(values: tf.Tensor) -> tf.Tensor:
  """Transposes [B, S, ...] to [S, B, ...] and back."""
  others = tf.range(2, tf.rank(values))
  return tf.transpose(values, tf.concat([[1, 0], others], axis=0))


_TYPE_UNITS = 20  # HDP: width of the op type embedding
_GROUPER_UNITS = 64  # HDP: hidden units of the grouper

Tensors = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class RnnConfig:
  """Sizes of the network.

  Attributes:
    units: Units of the LSTMs (HDP: 256 in the paper, 512 in the code). The
      default is smaller to train on CPUs, because the attention of a training
      step stores several times samples x groups^2 x units numbers.
    types: Op types with their own embedding. If empty, the most common types of
      the training graphs (HDP: 200).
  """

  units: int = 64
  types: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class HierarchicalConfig(RnnConfig):
  """Sizes of the network, in addition to `RnnConfig`.

  Attributes:
    groups: G. 0 selects TensorFlow's min(256, 20 x devices) for the largest
      training cluster (the paper: 256), limited to the ops of the largest
      graph.
  """

  groups: int = 0


class RnnNetwork(tf.Module):
  """Network that assigns decisions to devices in sequence.

  Tensors are those of `features`, by name.
  """

  def __init__(self, config: RnnConfig) -> None:
    super().__init__(name="rnn_network")
    self.config = config
    self._types = tf.keras.layers.Dense(_TYPE_UNITS, use_bias=False)
    self._seq2seq = Seq2Seq(config.units, is_bidirectional=False)
    self.decode(**self._blank(), **blank(features.NOISE))

  def _blank(self) -> Tensors:
    types = tf.zeros([1, len(self.config.types) + 1])
    return {**blank(features.SIGNATURE), "types": types}

  def exported_functions(self) -> dict[str, Any]:
    """Returns the functions that placers call."""
    arguments = {**features.SIGNATURE, **features.NOISE}
    return {"decode": as_function(self.decode, arguments)}

  def decode(self, **given: tf.Tensor) -> tf.Tensor:
    """Maps features and `noise` to [B, N] int32 devices."""
    return self._decoded(given, given["noise"])[0]

  def kinds(self, **given: tf.Tensor) -> list[Choices]:
    """Computes logits of the `choices`, each given those before it."""
    choices, devices = given["choices"], tf.shape(given["device"])[0]
    shape = tf.concat([tf.shape(choices), [devices]], axis=0)
    _, logits = self._decoded(given, tf.zeros(shape), choices)
    return [Choices(logits, choices, tf.ones_like(logits[..., 0]))]

  def _decoded(
    self, given: Tensors, noise: tf.Tensor, choices: tf.Tensor | None = None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    steps, allowed = self._steps(given)
    return self._seq2seq(
      steps, given["device"], allowed, noise, choices=choices
    )

  def _steps(self, given: Tensors) -> tuple[tf.Tensor, ...]:
    """Returns what `_seq2seq` reads and the devices allowed, of each step."""
    return self._embed(given)[None], given["allowed"][None]

  def _embed(self, given: Tensors) -> tf.Tensor:
    embedded = self._types(given["types"])
    return tf.concat([embedded, given["sizes"], given["adjacency"]], axis=-1)


class HierarchicalNetwork(RnnNetwork):
  """Network that assigns decisions to groups and groups to devices."""

  config: HierarchicalConfig

  def __init__(self, config: HierarchicalConfig) -> None:
    tf.Module.__init__(self, name="hierarchical_network")
    self.config = config
    dense = tf.keras.layers.Dense
    self._types = dense(_TYPE_UNITS, use_bias=False)
    self._grouper = dense(_GROUPER_UNITS, activation="relu")
    self._group = dense(config.groups)
    self._seq2seq = Seq2Seq(config.units, is_bidirectional=True)
    given = {**self._blank(), **blank(features.GROUPING)}
    self.group_logits(**given)
    self.decode(**given, noise=tf.zeros([1, config.groups, 1]))

  def exported_functions(self) -> dict[str, Any]:
    """Returns the functions that placers call."""
    arguments = {**features.SIGNATURE, **features.GROUPING, **features.NOISE}
    return {
      "group_logits": as_function(self.group_logits, features.SIGNATURE),
      "decode": as_function(self.decode, arguments),
    }

  def group_logits(self, **given: tf.Tensor) -> tf.Tensor:
    """Maps features to [N, G] logits."""
    return self._group(self._grouper(self._embed(given)))

  def kinds(self, **given: tf.Tensor) -> list[Choices]:
    """Computes logits of `grouping` and, given it, of the `choices`."""
    grouping, logits = given["grouping"], self.group_logits(**given)[None]
    groups = Choices(logits, grouping, tf.ones_like(logits[..., 0]))
    (devices,) = super().kinds(**given)
    _, _, members = self.groups(given)
    filled = tf.cast(members > 0, tf.float32)
    return [groups, dataclasses.replace(devices, weight=filled)]

  def _steps(self, given: Tensors) -> tuple[tf.Tensor, ...]:
    return self.groups(given)[:2]

  def groups(self, given: Tensors) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Describes the groups of [B, N] `grouping`.

    Returns:
      [B, G, F] the mean types and output sizes of the members and the number of
      links to and from each group, divided by the row's maximum + 1; [B, G, D]
      bool, True where some member can run (others go to their fastest device;
      otherwise one CPU op would send its whole group to the CPU) and for empty
      groups; and [B, G] float32 number of members.
    """
    grouping, groups = given["grouping"], self.config.groups
    batch, count = tf.unstack(tf.shape(grouping))
    at = grouping + groups * tf.range(batch)[:, None]  # unique in the batch
    described = tf.concat([self._types(given["types"]), given["sizes"]], -1)
    members = tf.concat(
      [
        tf.ones([count, 1]),
        described,
        tf.cast(given["allowed"], tf.float32),
      ],
      axis=-1,
    )
    total = tf.math.unsorted_segment_sum(
      tf.tile(members, [batch, 1]), tf.reshape(at, [-1]), batch * groups
    )
    total = tf.reshape(total, [batch, groups, -1])
    number, width = total[..., 0], described.shape[-1] + 1
    mean = total[..., 1:width] / tf.maximum(number, 1.0)[..., None]
    allowed = (total[..., width:] > 0) | (number == 0)[..., None]
    sends = tf.gather(at, given["edge_src"], axis=1)
    receives = tf.gather(grouping, given["edge_dst"], axis=1)
    links = tf.math.unsorted_segment_sum(
      tf.ones([tf.size(sends)]),
      tf.reshape(sends * groups + receives, [-1]),
      batch * groups * groups,
    )
    links = tf.reshape(links, [batch, groups, groups])
    links = tf.concat([links, tf.transpose(links, [0, 2, 1])], axis=-1)
    links /= tf.reduce_max(links, axis=-1, keepdims=True) + 1.0
    steps = tf.concat([mean, links], axis=-1)
    features_size = width - 1 + 2 * groups
    return (
      tf.ensure_shape(steps, [None, groups, features_size]),
      allowed,
      number,
    )


def blank(signature: Signature) -> Tensors:
  """Returns zeros of one decision on one device, to build a network with."""
  return {
    name: tf.zeros([size or 1 for size in shape], dtype)
    for name, (shape, dtype) in signature.items()
  }
