"""Networks of the recurrent placers (training process only).

The RNN-based network is from Mirhoseini et al. (2017), the hierarchical one
from HDP (2018), with the sizes of TensorFlow's `hierarchical_controller`.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.encoder import features as gdp_features
from tfplace.learned.export import as_function
from tfplace.learned.policy_format import Exportable
from tfplace.learned.sequence import METHODS, features
from tfplace.learned.sequence.seq2seq import Seq2Seq

_INPUTS = features.OUTPUTS + 2 * features.NEIGHBORS


@dataclasses.dataclass(frozen=True)
class RnnConfig:
  """Sizes of the network.

  Attributes:
    units: Units of the LSTMs (HDP: 256 in the paper, 512 in the code). The
      default is smaller to train on CPUs, because the attention of a training
      step stores several times samples x groups^2 x units numbers.
    type_units: Width of the op type embedding (HDP: 20).
    types: Op types with their own embedding. If empty, the most common types of
      the training graphs (HDP: 200).
    is_bidirectional: Makes the encoder bidirectional; the paper's is not.
  """

  units: int = 64
  type_units: int = 20
  types: tuple[str, ...] = ()
  is_bidirectional: bool = False


@dataclasses.dataclass(frozen=True)
class HierarchicalConfig(RnnConfig):
  """Sizes of the network, in addition to `RnnConfig`.

  Attributes:
    groups: G. 0 selects TensorFlow's min(256, 20 x devices) for the largest
      training cluster (the paper: 256), limited to the ops of the largest
      graph.
    grouper_units: Hidden units of the grouper (HDP: 64).
  """

  is_bidirectional: bool = True
  groups: int = 0
  grouper_units: int = 64


class _OpNetwork(tf.Module):
  def __init__(self, name: str, config: RnnConfig) -> None:
    super().__init__(name=name)
    self._types = tf.keras.layers.Dense(config.type_units, use_bias=False)
    self._types.build([None, len(config.types) + 1])

  def _embed(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    parts = [self._types(inputs["types"]), inputs["sizes"], inputs["adjacency"]]
    return tf.concat(parts, axis=-1)

  def _make_seq2seq(self, config: RnnConfig, inputs: int) -> Seq2Seq:
    return Seq2Seq(
      config.units,
      inputs,
      gdp_features.DEVICE_FEATURES,
      config.is_bidirectional,
    )


class RnnNetwork(_OpNetwork):
  """Network that assigns decisions to devices in sequence."""

  def __init__(self, config: RnnConfig) -> None:
    super().__init__("rnn_network", config)
    self.config = config
    self._seq2seq = self._make_seq2seq(config, config.type_units + _INPUTS)

  def logits(
    self, inputs: dict[str, tf.Tensor], choices: tf.Tensor
  ) -> tf.Tensor:
    """Maps inputs and [B, N] int32 earlier choices to [B, N, D] logits."""
    return self._seq2seq.logits(
      self._embed(inputs)[None],
      inputs["device"],
      inputs["allowed"][None],
      choices,
    )

  def decode(self, inputs: dict[str, tf.Tensor], noise: tf.Tensor) -> tf.Tensor:
    """Maps `OpEmbedding.tensors()`, [B, N, D] noise to [B, N] int32 choices."""
    return self._seq2seq.decode(
      self._embed(inputs)[None],
      inputs["device"],
      inputs["allowed"][None],
      noise,
    )


class HierarchicalNetwork(_OpNetwork):
  """Network that assigns decisions to groups and groups to devices."""

  def __init__(self, config: HierarchicalConfig) -> None:
    super().__init__("hierarchical_network", config)
    self.config = config
    dense = tf.keras.layers.Dense
    self._grouper = dense(config.grouper_units, activation="relu")
    self._grouper.build([None, config.type_units + _INPUTS])
    self._softmax = dense(config.groups)
    self._softmax.build([None, config.grouper_units])
    self._features = config.type_units + features.OUTPUTS + 2 * config.groups
    self._seq2seq = self._make_seq2seq(config, self._features)

  def group_logits(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """Maps `OpEmbedding.tensors()` to [N, G] logits."""
    return self._softmax(self._grouper(self._embed(inputs)))

  def logits(
    self, inputs: dict[str, tf.Tensor], grouping: tf.Tensor, choices: tf.Tensor
  ) -> tf.Tensor:
    """Computes the groups' device logits from `OpEmbedding.tensors()`.

    Each group is conditioned on the choices before it.

    Args:
      grouping: [B, N] int32 group of each decision.
      choices: [B, G] int32 device of each group.

    Returns:
      [B, G, D], `NEVER` where none of a group's decisions can run.
    """
    return self._seq2seq.logits(
      self.embed_groups(inputs, grouping),
      inputs["device"],
      self.group_allowed(inputs, grouping),
      choices,
    )

  def decode(
    self, inputs: dict[str, tf.Tensor], grouping: tf.Tensor, noise: tf.Tensor
  ) -> tf.Tensor:
    """Maps [B, N] grouping, [B, G, D] noise to [B, G] int32 choices."""
    return self._seq2seq.decode(
      self.embed_groups(inputs, grouping),
      inputs["device"],
      self.group_allowed(inputs, grouping),
      noise,
    )

  def embed_groups(
    self, inputs: dict[str, tf.Tensor], grouping: tf.Tensor
  ) -> tf.Tensor:
    """Maps [B, N] to [B, G, type_units + OUTPUTS + 2 G] embeddings.

    An embedding contains the mean types and output sizes of the members, and
    the number of links to and from each group, divided by the row's maximum +
    1. Empty groups are zero.
    """
    groups = self.config.groups
    batch = tf.shape(grouping)[0]
    members = tf.concat([self._types(inputs["types"]), inputs["sizes"]], -1)
    at = self._at(grouping)
    mean = tf.math.unsorted_segment_mean(
      tf.tile(members, [batch, 1]), tf.reshape(at, [-1]), batch * groups
    )
    sends = tf.gather(at, inputs["edge_src"], axis=1)
    receives = tf.gather(grouping, inputs["edge_dst"], axis=1)
    links = tf.math.unsorted_segment_sum(
      tf.ones([tf.size(sends)]),
      tf.reshape(sends * groups + receives, [-1]),
      batch * groups * groups,
    )
    links = tf.reshape(links, [batch, groups, groups])
    links = tf.concat([links, tf.transpose(links, [0, 2, 1])], axis=-1)
    links /= tf.reduce_max(links, axis=-1, keepdims=True) + 1.0
    mean = tf.reshape(mean, [batch, groups, -1])
    joined = tf.concat([mean, links], axis=-1)
    return tf.ensure_shape(joined, [None, groups, self._features])

  def group_allowed(
    self, inputs: dict[str, tf.Tensor], grouping: tf.Tensor
  ) -> tf.Tensor:
    """Returns [B, G, D] bool, True where some member can run.

    Other members go to their `features.fallback_devices`. If all members had to
    run there, one CPU op would send its whole group to the CPU. An empty group
    can be on all devices.
    """
    groups = self.config.groups
    batch, devices = tf.shape(grouping)[0], tf.shape(inputs["allowed"])[1]
    member = tf.tile(tf.cast(inputs["allowed"], tf.float32), [batch, 1])
    runs = tf.math.unsorted_segment_sum(
      member, tf.reshape(self._at(grouping), [-1]), batch * groups
    )
    runs = tf.reshape(runs, [batch, groups, devices]) > 0
    return runs | (self.members(grouping) == 0)[..., None]

  def members(self, grouping: tf.Tensor) -> tf.Tensor:
    """Maps [B, N] groups to [B, G] int32 member counts."""
    at = tf.reshape(self._at(grouping), [-1])
    size = tf.shape(grouping)[0] * self.config.groups
    counts = tf.math.unsorted_segment_sum(tf.ones_like(at), at, size)
    return tf.reshape(counts, [-1, self.config.groups])

  def _at(self, grouping: tf.Tensor) -> tf.Tensor:
    """Returns [B, N] groups with unique numbers across the batch."""
    batch = tf.shape(grouping)[0]
    return grouping + self.config.groups * tf.range(batch)[:, None]


def exportable(
  strategy: str, network: RnnNetwork | HierarchicalNetwork
) -> Exportable:
  """Wraps the methods named in `METHODS` as functions to export."""
  seen = features.signature(len(network.config.types))
  return Exportable(
    strategy=strategy,
    network=dataclasses.asdict(network.config),
    variables=list(network.variables),
    functions={
      name: _function(getattr(network, name), seen, arguments)
      for name, arguments in METHODS[strategy].functions.items()
    },
  )


def _function(
  method: Callable[..., tf.Tensor], seen: Signature, arguments: Signature
) -> tf.types.experimental.PolymorphicFunction:
  def call(**given: tf.Tensor) -> tf.Tensor:
    return method({name: given.pop(name) for name in seen}, **given)

  return as_function(call, {**arguments, **seen})
