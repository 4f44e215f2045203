"""WaveNet: a deep stack of dilated causal convolutions over raw audio.

Van den Oord et al., arXiv 1609.03499, trained on samples at once (teacher
forcing); it does not generate. All ops of a layer are under the layer's scope,
`wavenet/stack_1_layer_7/...`, with the running sum of skip connections;
`postprocess` and `softmax` come last.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace.models.lstm import Sampler

LEVELS = 256  # of mu-law coded audio, the paper's
LARGEST_DILATION = 512  # the paper's; then it starts again from 1
_TAPS = 2  # samples that a causal convolution sees, as in the paper's figures


@keras.saving.register_keras_serializable("tfplace")
class GatedLayer(keras.layers.Layer):
  """A dilated causal convolution, gated, with residual and skip outputs.

  Args:
    dilation: distance between the two samples that it sees.
    last: no layer follows, so nothing is passed on.
    channels: of the residual path, the filter and the gate.
    skip_channels: of the skip connections.
  """

  def __init__(
    self,
    dilation: int,
    channels: int,
    skip_channels: int,
    last: bool = False,
    **kwargs: Any,
  ) -> None:
    super().__init__(**kwargs)
    self.dilation, self.channels = dilation, channels
    self.skip_channels, self.last = skip_channels, last
    self.gated = keras.layers.Conv1D(
      2 * channels,
      _TAPS,
      dilation_rate=dilation,
      padding="causal",
      name="dilated",
    )
    self.to_residual = keras.layers.Conv1D(channels, 1, name="residual")
    self.to_skip = keras.layers.Conv1D(skip_channels, 1, name="skip")

  def build(self, *unused_shapes: Any, **unused: Any) -> None:
    """Makes the weights."""
    for layer in (self.gated, self.to_skip):
      layer.build((None, None, self.channels))
    if not self.last:
      self.to_residual.build((None, None, self.channels))

  def call(
    self, value: tf.Tensor, skips: tf.Tensor | None = None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Passes a value on and adds to the sum of skip connections.

    Args:
      value: [batch, time, channels].
      skips: [batch, time, skip_channels] of the layers before; None in the
        first.

    Returns:
      Both, of the same shapes; the value unchanged by the last layer.
    """
    filtered, gate = tf.split(self.gated(value), 2, axis=2)
    active = tf.tanh(filtered) * tf.sigmoid(gate)
    skip = self.to_skip(active)
    added = skip if skips is None else skips + skip
    if self.last:
      return value, added
    return value + self.to_residual(active), added


def wavenet(
  batch_size: int = 8,
  stacks: int = 2,
  layers_per_stack: int = 18,
  samples: int = 7680,
  channels: int = 64,
  skip_channels: int = 256,
) -> tuple[keras.Model, Sampler]:
  """WaveNet with `stacks` stacks of `layers_per_stack` layers.

  2 x 18 and 4 x 36 are the rows of GO's table 1 (arXiv 2010.12438). From the
  paper: 256 levels, dilations 1, 2, 4, ..., 512 and again from 1 (and at the
  start of a stack), gates, residual and skip connections, two 1x1 convolutions
  before the softmax. The paper gives no widths, length or batch; chosen so
  that 4 x 36 needs more than one GPU of 16 GB. Adam of 1e-3 is chosen.

  Args:
    batch_size: sequences per step.
    stacks: how often the dilations start again, at least.
    layers_per_stack: layers in each.
    samples: length of a sequence.
    channels: of the residual path, filter and gate.
    skip_channels: of the skip connections.
  """
  audio = keras.Input((samples,), dtype="int32", name="audio")
  value = keras.layers.CategoryEncoding(
    LEVELS, output_mode="one_hot", name="one_hot"
  )(audio[..., None])
  value = keras.layers.Conv1D(
    channels, _TAPS, padding="causal", name="preprocess"
  )(value)
  skips = None
  names = [(s, i) for s in range(stacks) for i in range(layers_per_stack)]
  for stack, i in names:
    layer = GatedLayer(
      2 ** (i % LARGEST_DILATION.bit_length()),
      channels,
      skip_channels,
      last=(stack, i) == names[-1],
      name=f"stack_{stack}_layer_{i}",
    )
    value, skips = layer(value, skips)
  value = keras.layers.ReLU(name="postprocess_relu")(skips)
  value = keras.layers.Conv1D(
    skip_channels, 1, activation="relu", name="postprocess"
  )(value)
  value = keras.layers.Conv1D(LEVELS, 1, name="softmax")(value)
  model = keras.Model(audio, value, name="wavenet")
  model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    jit_compile=False,
  )

  def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    wave = rng.integers(0, LEVELS, (batch_size, samples + 1), np.int32)
    return wave[:, :-1], wave[:, 1:]

  return model, sample
