"""Sequence-to-sequence LSTM with content attention. Training process only."""

import tensorflow as tf

from tfplace.learned.decisions import NEVER


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
