"""A sequence of ops to a sequence of devices: LSTMs with content attention.

The placing half of the RNN-based placer (Mirhoseini et al. 2017) and of the
hierarchical one (HDP, Mirhoseini et al. 2018). LSTMs run as one kernel,
TensorFlow's `BlockLSTMV2`. For a training process only.
"""

import tensorflow as tf

NEVER = -1e9  # logit of a device that cannot run the decision


class Lstm(tf.Module):
  """An LSTM over a sequence, and the same one step at a time.

  Gates in the order input, forget, cell, output; no peepholes. The forget
  gate's bias starts at 1, as in the papers' code.
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


class Seq2Seq(tf.Module):
  """Encoder, attention and decoder over S steps.

  The decoder starts from the encoder's last state, reads the device of the
  step before (a vector of its own before the first) and, which no paper has,
  the encoder's state of its own step, and attends to all of the encoder's
  states by v tanh(W1 e + W2 h), as Bahdanau et al. (2015) do. The
  papers have a vector and a row of the softmax for each device; here both are
  linear in the device's features, which hold its number among its kind.

  Attributes:
    units: size of the encoder's and the decoder's states.
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
      units: see above; each direction of the encoder has half of them.
      inputs: features of a step.
      device_features: features of a device.
      is_bidirectional: whether the encoder reads the sequence backwards, too.
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
    """Logits of every step, given the choices of the steps before.

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
    """[B, S] int32 devices: at each step the best of logits plus noise.

    A row of zeros decodes greedily, one of Gumbel noise draws a sample.

    Args:
      inputs: as for `logits`.
      device: as for `logits`.
      allowed: as for `logits`.
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
    """[B, S, F] -> [B, S, units] states, [B, units] last h and last c."""
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
    """Content attention of T queries.

    Args:
      h: [B, T, units] states of the decoder.
      memory: [B or 1, S, units] W1 e, of the encoder's states e.

    Returns:
      [B, T, S] weights that sum to 1, [B, T, units] the weighted memory.
    """
    joined = tf.tanh((h @ self._query)[:, :, None] + memory[:, None])
    score = tf.tensordot(joined, self._score[:, 0], 1)
    weight = tf.nn.softmax(score)
    return weight, tf.matmul(weight, memory)

  def _encode_for(
    self, inputs: tf.Tensor, batch: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """`encode`, with h and c for `batch` placements."""
    states, h, c = self.encode(inputs)
    shape = [batch, self.units]
    return states, tf.broadcast_to(h, shape), tf.broadcast_to(c, shape)

  def _table(self, device: tf.Tensor) -> tf.Tensor:
    """[D + 1, units] what the decoder reads: devices, then the beginning."""
    return tf.concat([device @ self._device, self._first], axis=0)

  def _score_devices(
    self,
    h: tf.Tensor,
    context: tf.Tensor,
    device: tf.Tensor,
    allowed: tf.Tensor,
  ) -> tf.Tensor:
    """[B, T, units] twice -> [B, T, D] masked logits."""
    logits = tf.concat([h, context], -1) @ tf.transpose(device @ self._softmax)
    return tf.where(allowed, logits, NEVER)


def _linear(inputs: int, outputs: int) -> tf.Variable:
  glorot = tf.keras.initializers.GlorotUniform()
  return tf.Variable(glorot([inputs, outputs]), name="kernel")


def _swap(values: tf.Tensor) -> tf.Tensor:
  """[B, S, ...] -> [S, B, ...], and back."""
  return tf.transpose(values, [1, 0, 2])
