"""The RNN-based placement network (Mirhoseini et al. 2017).

A sequence-to-sequence model over co-location groups: it reads their embeddings
in order and names a device for each, seeing the devices that it named before.
For the training process only; `tfplace.policies.sequence_placer` runs exports.
"""

import dataclasses

from tfplace.policies import features, keras2, op_embedding

keras2.check_training_process()

import tensorflow as tf  # noqa: E402

from tfplace.policies.seq2seq import Seq2Seq  # noqa: E402


@dataclasses.dataclass(frozen=True)
class RnnConfig:
  """Sizes of the network.

  Attributes:
    units: of the LSTMs. HDP's code has 512, and its paper 256; fewer by
      default, to train on CPUs. The attention of a training step holds
      samples x groups^2 x units numbers several times: with 16 samples, 256
      groups and 64 units the process takes 1.8 GB.
    type_units: width of the embedding of op types (HDP: 20).
    types: op types with an embedding of their own; empty takes the commonest
      of the graphs that are trained on.
    is_bidirectional: of the encoder; the paper's reads forward only.
    sees_own: see `Seq2Seq`. With it and `is_bidirectional`, imitation of a
      placement of Inception-V3 (64 groups, one seed) got to a loss of 0.22,
      with neither to 0.59; the two were not told apart.
    logit_bound: see `Seq2Seq`; HDP's code has 1.
  """

  units: int = 64
  type_units: int = 20
  types: tuple[str, ...] = ()
  is_bidirectional: bool = False
  sees_own: bool = True
  logit_bound: float = 0.0


class RnnNetwork(tf.Module):
  """Embeddings of one problem's decisions to devices, one after the other."""

  def __init__(self, config: RnnConfig) -> None:
    super().__init__(name="rnn_network")
    self.config = config
    self._types = tf.keras.layers.Dense(config.type_units, use_bias=False)
    self._types.build([None, len(config.types) + 1])
    self._seq2seq = Seq2Seq(
      config.units,
      config.type_units + op_embedding.OUTPUTS + 2 * op_embedding.NEIGHBOURS,
      features.DEVICE_FEATURES,
      config.is_bidirectional,
      config.sees_own,
      config.logit_bound,
    )

  def logits(
    self, inputs: dict[str, tf.Tensor], choices: tf.Tensor
  ) -> tf.Tensor:
    """`OpEmbedding.tensors()`, [B, N] int32 choices -> [B, N, D] logits.

    Those of a decision are given the choices before it.
    """
    return self._seq2seq.logits(
      self._embed(inputs), inputs["device"], inputs["allowed"][None], choices
    )

  def decode(self, inputs: dict[str, tf.Tensor], noise: tf.Tensor) -> tf.Tensor:
    """`OpEmbedding.tensors()`, [B, N, D] noise -> [B, N] int32 choices."""
    return self._seq2seq.decode(
      self._embed(inputs), inputs["device"], inputs["allowed"][None], noise
    )

  def _embed(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    """[1, N, F]."""
    parts = [self._types(inputs["types"]), inputs["sizes"], inputs["adjacency"]]
    return tf.concat(parts, axis=-1)[None]
