"""The networks of the recurrent placers.

The RNN-based one (Mirhoseini et al. 2017) reads the embeddings of co-location
groups in order and names a device for each, seeing the devices that it named
before. The hierarchical one (HDP, Mirhoseini et al. 2018) gives every op a
group by a feed-forward grouper, and every group a device as the other does;
sizes and embeddings are those of its paper and of TensorFlow's old
`hierarchical_controller`. For a training process only.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfplace.learned import Signature
from tfplace.learned.export import as_function
from tfplace.learned.exported import Exportable
from tfplace.learned.gdp import features as gdp_features
from tfplace.learned.sequence import METHODS, features
from tfplace.learned.sequence.seq2seq import Seq2Seq

_INPUTS = features.OUTPUTS + 2 * features.NEIGHBOURS


@dataclasses.dataclass(frozen=True)
class RnnConfig:
  """Sizes of the network.

  Attributes:
    units: of the LSTMs. HDP's paper has 256, its code 512; fewer by default, to
      train on CPUs: the attention of a training step holds samples x groups^2 x
      units numbers several times.
    type_units: width of the embedding of op types (HDP: 20).
    types: op types with an embedding of their own; empty takes the commonest
      of the graphs that are trained on (HDP: 200).
    is_bidirectional: of the encoder; the paper's reads forward only.
  """

  units: int = 64
  type_units: int = 20
  types: tuple[str, ...] = ()
  is_bidirectional: bool = False


@dataclasses.dataclass(frozen=True)
class HierarchicalConfig(RnnConfig):
  """Sizes of the network, besides those of `RnnConfig`.

  Attributes:
    groups: G; 0 takes TensorFlow's min(256, 20 x devices), of the largest
      cluster that is trained on (the paper: 256), and no more than the largest
      graph has ops.
    grouper_units: hidden size of the grouper (HDP: 64).
  """

  is_bidirectional: bool = True
  groups: int = 0
  grouper_units: int = 64


class _OpNetwork(tf.Module):
  """What both networks make of a decision's embedding."""

  def __init__(self, name: str, config: RnnConfig) -> None:
    super().__init__(name=name)
    self._types = tf.keras.layers.Dense(config.type_units, use_bias=False)
    self._types.build([None, len(config.types) + 1])

  def _embed(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """`OpEmbedding.tensors()` -> [N, F]."""
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
  """Embeddings of one problem's decisions to devices, one after the other."""

  def __init__(self, config: RnnConfig) -> None:
    super().__init__("rnn_network", config)
    self.config = config
    self._seq2seq = self._make_seq2seq(config, config.type_units + _INPUTS)

  def logits(
    self, inputs: dict[str, tf.Tensor], choices: tf.Tensor
  ) -> tf.Tensor:
    """`OpEmbedding.tensors()`, [B, N] int32 choices -> [B, N, D] logits.

    Those of a decision are given the choices before it.
    """
    return self._seq2seq.logits(
      self._embed(inputs)[None],
      inputs["device"],
      inputs["allowed"][None],
      choices,
    )

  def decode(self, inputs: dict[str, tf.Tensor], noise: tf.Tensor) -> tf.Tensor:
    """`OpEmbedding.tensors()`, [B, N, D] noise -> [B, N] int32 choices."""
    return self._seq2seq.decode(
      self._embed(inputs)[None],
      inputs["device"],
      inputs["allowed"][None],
      noise,
    )


class HierarchicalNetwork(_OpNetwork):
  """Embeddings of one problem's decisions to groups, and groups to devices."""

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
    """`OpEmbedding.tensors()` -> [N, G] logits."""
    return self._softmax(self._grouper(self._embed(inputs)))

  def logits(
    self, inputs: dict[str, tf.Tensor], grouping: tf.Tensor, choices: tf.Tensor
  ) -> tf.Tensor:
    """Logits of the groups' devices, each given the choices before it.

    Args:
      inputs: `OpEmbedding.tensors()`.
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
    """[B, N] grouping, [B, G, D] noise -> [B, G] int32 choices."""
    return self._seq2seq.decode(
      self.embed_groups(inputs, grouping),
      inputs["device"],
      self.group_allowed(inputs, grouping),
      noise,
    )

  def embed_groups(
    self, inputs: dict[str, tf.Tensor], grouping: tf.Tensor
  ) -> tf.Tensor:
    """[B, G, type_units + OUTPUTS + 2 G] for a [B, N] grouping.

    The mean of the members' types and of their output sizes; the numbers of
    links to and from every group, each row divided by its maximum + 1. An
    empty group has zeros.
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
    """[B, G, D] bool: some member runs there; all devices of an empty group.

    A member that does not follows `features.fallback_devices`. To ask that
    all members run there would send every group with one CPU op to the CPU.
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
    """[B, N] groups -> [B, G] int32 numbers of decisions."""
    at = tf.reshape(self._at(grouping), [-1])
    size = tf.shape(grouping)[0] * self.config.groups
    counts = tf.math.unsorted_segment_sum(tf.ones_like(at), at, size)
    return tf.reshape(counts, [-1, self.config.groups])

  def _at(self, grouping: tf.Tensor) -> tf.Tensor:
    """[B, N] groups, numbered through the batch."""
    batch = tf.shape(grouping)[0]
    return grouping + self.config.groups * tf.range(batch)[:, None]


def exportable(
  strategy: str, network: RnnNetwork | HierarchicalNetwork
) -> Exportable:
  """The network's methods that the strategy's `METHODS` name, as functions."""
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
