"""An LSTM over a sequence in one kernel, and the same one step at a time.

The kernel is TensorFlow's `BlockLSTMV2`: at the sizes of these policies a loop
of single ops spends its time between them. For the training process only.
"""

from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402


class Lstm(tf.Module):
  """Gates in the order input, forget, cell, output; no peepholes.

  The forget gate's bias starts at 1, as in the papers' code.
  """

  def __init__(self, inputs: int, units: int) -> None:
    super().__init__(name="lstm")
    self.units = units
    glorot = tf.keras.initializers.GlorotUniform()
    self.kernel = tf.Variable(
      glorot([inputs + units, 4 * units]), name="kernel"
    )
    bias = tf.constant([0.0, 1.0, 0.0, 0.0])
    self.bias = tf.Variable(tf.repeat(bias, units), name="bias")

  def sequence(
    self, inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """[S, B, F] inputs, [B, units] h and c -> [S, B, units], last h and c."""
    nothing = tf.zeros([self.units])
    result = tf.raw_ops.BlockLSTMV2(
      seq_len_max=tf.shape(inputs, out_type=tf.int64)[0],
      x=inputs,
      cs_prev=c,
      h_prev=h,
      w=self.kernel,
      wci=nothing,
      wcf=nothing,
      wco=nothing,
      b=self.bias,
      cell_clip=0.0,
      use_peephole=False,
    )
    return result.h, result.h[-1], result.cs[-1]

  def step(
    self, inputs: tf.Tensor, h: tf.Tensor, c: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """[B, F] inputs, [B, units] h and c -> the next h and c."""
    gates = tf.matmul(tf.concat([inputs, h], 1), self.kernel) + self.bias
    i, f, g, o = tf.split(gates, 4, axis=1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c
