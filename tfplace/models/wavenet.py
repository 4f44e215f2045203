"""WaveNet: a deep stack of dilated causal convolutions over raw audio.

The model of van den Oord et al. (arXiv 1609.03499) is trained on whole
sequences (teacher forcing); it has no generation. All ops of a layer, including
the running sum of skip connections, are in the scope of the layer, such as
`wavenet/stack_1_layer_7/...`. `postprocess` and `softmax` come last.
"""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace.models.lstm import Sampler

LEVELS = 256  # levels of mu-law encoded audio, as in the paper
LARGEST_DILATION = 512  # as in the paper; dilations then restart from 1
_TAPS = 2  # kernel size of a causal convolution, as in the paper's figures


@keras.saving.register_keras_serializable("tfplace")
class GatedLayer(keras.layers.Layer):
  """Gated dilated causal convolution with residual and skip outputs.

  Args:
    dilation: Distance between the two input samples of the convolution.
    last: Omits the residual output, because no layer follows.
    channels: Channels of the residual path, the filter and the gate.
    skip_channels: Channels of the skip connections.
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
    self.channels, self.last = channels, last
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
    """Creates the weights."""
    for layer in (self.gated, self.to_skip):
      layer.build((None, None, self.channels))
    if not self.last:
      self.to_residual.build((None, None, self.channels))

  def call(
    self, value: tf.Tensor, skips: tf.Tensor | None = None
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the residual output and adds to the skip connections.

    Args:
      value: [batch, time, channels].
      skips: [batch, time, skip_channels], the sum of the previous layers. None
        in the first layer.

    Returns:
      The residual output and the new sum, shaped like the arguments. The last
      layer returns `value` unchanged.
    """
    filtered, gate = tf.split(self.gated(value), 2, axis=2)
    active = tf.tanh(filtered) * tf.sigmoid(gate)
    skip = self.to_skip(active)
    added = skip if skips is None else skips + skip
    if self.last:
      return value, added
    return value + self.to_residual(active), added


def wavenet(
  *,
  batch_size: int = 8,
  stacks: int = 2,
  layers_per_stack: int = 18,
  samples: int = 7680,
  channels: int = 64,
  skip_channels: int = 256,
) -> tuple[keras.Model, Sampler]:
  """Builds WaveNet with `stacks` stacks of `layers_per_stack` layers.

  2 x 18 and 4 x 36 are the rows of GO's table 1 (arXiv 2010.12438). The paper
  gives 256 levels, dilations 1, 2, 4, ..., 512 that restart from 1 (here also
  at the start of a stack), gates, residual and skip connections, and two 1x1
  convolutions before the softmax. It gives no channels, length or batch size;
  the defaults make 4 x 36 exceed one GPU of 16 GB. Adam with learning rate 1e-3
  is a choice of this zoo.

  Args:
    batch_size: Sequences per step.
    stacks: Number of stacks. Dilations restart at each stack.
    layers_per_stack: Layers per stack.
    samples: Length of a sequence.
    channels: Channels of the residual path, the filter and the gate.
    skip_channels: Channels of the skip connections.
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
