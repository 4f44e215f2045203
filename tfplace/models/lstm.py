"""An LSTM step by step: weights read once, then ops of their own per step.

Keras' own LSTM layer loops over time or hides the steps; placement wants
them apart.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf


class Cell(NamedTuple):
  """Weights of an LSTM layer, as read.

  Attributes:
    kernel: [input + units, 4 * units].
    bias: [4 * units].
  """

  kernel: tf.Tensor
  bias: tf.Tensor


class State(NamedTuple):
  """State of an LSTM layer: output and cell, each [batch, units]."""

  output: tf.Tensor
  cell: tf.Tensor


class LstmWeights(keras.layers.Layer):
  """Holds the weights of one LSTM layer."""

  def __init__(self, units: int, **kwargs: Any) -> None:
    super().__init__(**kwargs)
    self.units = units

  def build(self, input_shape: tuple[Any, ...]) -> None:
    """Makes the weights for inputs of [batch, input_shape[-1]]."""
    rows = input_shape[-1] + self.units
    self.kernel = self.add_weight((rows, 4 * self.units), name="kernel")
    self.bias = self.add_weight(
      (4 * self.units,), initializer="zeros", name="bias"
    )

  def read(self) -> Cell:
    """Reads the weights, under the layer's name."""
    with tf.name_scope(self.name):
      return Cell(
        tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.bias)
      )


def lstm_step(inputs: list[tf.Tensor], state: State, cell: Cell) -> State:
  """One step of an LSTM with forget bias 1; inputs are concatenated."""
  joined = tf.concat([*inputs, state.output], axis=1)
  gates = tf.nn.bias_add(tf.matmul(joined, cell.kernel), cell.bias)
  enter, update, forget, leave = tf.split(gates, 4, axis=1)
  kept = state.cell * tf.sigmoid(forget + 1.0)
  memory = kept + tf.sigmoid(enter) * tf.tanh(update)
  return State(tf.tanh(memory) * tf.sigmoid(leave), memory)


def zero_state(words: tf.Tensor, units: int) -> State:
  """Where a sentence starts, for words of [batch, length]."""
  zeros = tf.zeros((tf.shape(words)[0], units))
  return State(zeros, zeros)


def residual(layer: int, value: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
  """Wu et al. (arXiv 1609.08144): residual connections from the third layer
  on.

  Args:
    layer: number of the layer, from 0.
    value: what the layer below gave to this one, [batch, units].
    output: of this layer, [batch, units].
  """
  return output + value if layer >= 2 else output
