"""Sequence-to-sequence LSTM with content attention. Training process only."""

import tensorflow as tf

from tfplace.learned.decisions import NEVER


class Lstm(tf.Module):
  """LSTM over a sequence or one step at a time.

  Gates are in the order input, forget, cell, output, without peepholes. The
  forget bias starts at 1, as in the code of the papers.
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
    """Maps [S, B, F] inputs and [B, units] h, c to [S, B, units], h and c."""
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
    """Maps [B, F] inputs and [B, units] h, c to the next h and c."""
    gates = tf.matmul(tf.concat([inputs, h], 1), self.kernel) + self.bias
    i, f, g, o = tf.split(gates, 4, axis=1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


class Seq2Seq(tf.Module):
  """Encoder, attention and decoder over S steps.

  The decoder starts from the last encoder state. Its input is the device of the
  previous step (a learned vector at the first step) and, unlike in the papers,
  the encoder state of its own step. It attends to all encoder states by v
  tanh(W1 e + W2 h), as in Bahdanau et al. (2015). The papers learn an embedding
  and a softmax row per device. Here both are linear in the device features,
  which include the rank of the device within its kind.

  Attributes:
    units: Size of the encoder and decoder states.
  """

  def __init__(
    self,
    units: int,
    inputs: int,
    device_features: int,
    is_bidirectional: bool = True,
  ) -> None:
    """Builds all weights.

    Args:
      units: See above. A bidirectional encoder has half of them per direction.
      inputs: Features per step.
      device_features: Features per device.
    """
    super().__init__(name="seq2seq")
    self.units = units
    width = units // 2 if is_bidirectional else units
    self._encoders = [
      Lstm(inputs, width) for _ in range(2 if is_bidirectional else 1)
    ]
    self._decoder = Lstm(2 * units, units)
    self._device = _linear(device_features, units)
    self._first = _linear(1, units)
    self._memory = _linear(units, units)
    self._query = _linear(units, units)
    self._score = _linear(units, 1)
    self._softmax = _linear(device_features, 2 * units)

  def logits(
    self,
    inputs: tf.Tensor,
    device: tf.Tensor,
    allowed: tf.Tensor,
    choices: tf.Tensor,
  ) -> tf.Tensor:
    """Computes the logits of all steps, given the choices before them.

    Args:
      inputs: [B, S, F], or [1, S, F] for all placements.
      device: [D, device_features].
      allowed: [B or 1, S, D] bool.
      choices: [B, S] int32 devices.

    Returns:
      [B, S, D], `NEVER` where not allowed.
    """
    states, h, c = self._encode_for(inputs, tf.shape(choices)[0])
    first = tf.fill([tf.shape(choices)[0], 1], tf.shape(device)[0])
    last = tf.concat([first, choices], axis=1)[:, :-1]
    signal = tf.gather(self._table(device), last)
    shape = [tf.shape(choices)[0], tf.shape(states)[1], self.units]
    signal = tf.concat([signal, tf.broadcast_to(states, shape)], axis=-1)
    found, _, _ = self._decoder.sequence(_swap(signal), h, c)
    found = _swap(found)
    _, context = self.attend(found, states @ self._memory)
    return self._score_devices(found, context, device, allowed)

  def decode(
    self,
    inputs: tf.Tensor,
    device: tf.Tensor,
    allowed: tf.Tensor,
    noise: tf.Tensor,
  ) -> tf.Tensor:
    """Decodes [B, S] int32 devices that maximize logits plus noise.

    Zero noise decodes greedily; Gumbel noise yields samples.

    Args:
      inputs, device, allowed: See `logits`.
      noise: [B, S, D] float32.
    """
    batch = tf.shape(noise)[0]
    states, h, c = self._encode_for(inputs, batch)
    memory, table = states @ self._memory, self._table(device)
    count = tf.shape(inputs)[1]

    def body(
      step: tf.Tensor,
      last: tf.Tensor,
      h: tf.Tensor,
      c: tf.Tensor,
      choices: tf.TensorArray,
    ) -> tuple:
      signal = tf.gather(table, last)
      own = tf.broadcast_to(states[:, step], [batch, self.units])
      signal = tf.concat([signal, own], axis=1)
      h, c = self._decoder.step(signal, h, c)
      _, context = self.attend(h[:, None], memory)
      now = allowed[:, step : step + 1]
      found = self._score_devices(h[:, None], context, device, now)
      noisy = found[:, 0] + noise[:, step]
      choice = tf.argmax(noisy, axis=1, output_type=tf.int32)
      return step + 1, choice, h, c, choices.write(step, choice)

    start = tf.fill([batch], tf.shape(device)[0])
    *_, choices = tf.while_loop(
      lambda step, *_: step < count,
      body,
      [0, start, h, c, tf.TensorArray(tf.int32, count)],
    )
    return tf.transpose(choices.stack())

  def encode(self, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Maps [B, S, F] to [B, S, units] states and [B, units] last h and c."""
    parts = []
    for number, lstm in enumerate(self._encoders):
      steps = _swap(inputs)[::-1] if number else _swap(inputs)
      zero = tf.zeros([tf.shape(inputs)[0], lstm.units])
      states, h, c = lstm.sequence(steps, zero, zero)
      parts.append((_swap(states[::-1] if number else states), h, c))
    states, h, c = (tf.concat(found, -1) for found in zip(*parts, strict=True))
    return states, h, c

  def attend(
    self, h: tf.Tensor, memory: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes the content attention of T queries.

    Args:
      h: [B, T, units] decoder states.
      memory: [B or 1, S, units] W1 e of the encoder states e.

    Returns:
      [B, T, S] weights that sum to 1, and [B, T, units] weighted memory.
    """
    joined = tf.tanh((h @ self._query)[:, :, None] + memory[:, None])
    score = tf.tensordot(joined, self._score[:, 0], 1)
    weight = tf.nn.softmax(score)
    return weight, tf.matmul(weight, memory)

  def _encode_for(
    self, inputs: tf.Tensor, batch: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    states, h, c = self.encode(inputs)
    shape = [batch, self.units]
    return states, tf.broadcast_to(h, shape), tf.broadcast_to(c, shape)

  def _table(self, device: tf.Tensor) -> tf.Tensor:
    """Returns [D + 1, units] decoder inputs: the devices, then the start."""
    return tf.concat([device @ self._device, self._first], axis=0)

  def _score_devices(
    self,
    h: tf.Tensor,
    context: tf.Tensor,
    device: tf.Tensor,
    allowed: tf.Tensor,
  ) -> tf.Tensor:
    logits = tf.concat([h, context], -1) @ tf.transpose(device @ self._softmax)
    return tf.where(allowed, logits, NEVER)


def _linear(inputs: int, outputs: int) -> tf.Variable:
  glorot = tf.keras.initializers.GlorotUniform()
  return tf.Variable(glorot([inputs, outputs]), name="kernel")


def _swap(values: tf.Tensor) -> tf.Tensor:
  """Transposes [B, S, ...] to [S, B, ...] and back."""
  return tf.transpose(values, [1, 0, 2])
