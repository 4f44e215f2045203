"""Networks of the recurrent placers (training process only).

The RNN-based network is from Mirhoseini et al. (2017), the hierarchical one
from HDP (2018), with the sizes of TensorFlow's `hierarchical_controller`.
"""

import dataclasses

import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.sequence import features
from tfplace.learned.sequence.reinforce import Choices
from tfplace.learned.sequence.seq2seq import Seq2Seq

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
    steps, allowed = self._embed(given)[None], given["allowed"][None]
    return self._seq2seq(steps, given["device"], allowed, noise, choices)

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

  def _decoded(
    self, given: Tensors, noise: tf.Tensor, choices: tf.Tensor | None = None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    steps, allowed, _ = self.groups(given)
    return self._seq2seq(steps, given["device"], allowed, noise, choices)

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
