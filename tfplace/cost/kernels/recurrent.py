"""Recurrent layers of cuDNN, to which Keras' LSTM and GRU compile on GPUs.

The input of all time steps is one matrix product. The state passes through a
product and elementwise kernels for each time step, one after another.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfplace.cost.kernels import gemm
from tfplace.cost.kernels.gemm import GemmParameters
from tfplace.cost.kernels.rates import Rates

FORWARD = ("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3")
GRADIENTS = tuple(op.replace("RNN", "RNNBackprop") for op in FORWARD)
_GATES = {b"lstm": 4, b"gru": 3, b"rnn_relu": 1, b"rnn_tanh": 1}
# Launches and elementwise kernels of a time step, in microseconds. Fitted to
# the LSTMs of a V100 in `baidu-research/DeepBench` (docs/costs.md).
_STEP_US = 20.0
_KEPT = 2  # States and their activations, kept beside the gates for backward.


class Layers(NamedTuple):
  """Sizes of a stack of recurrent layers; each may be an array.

  Attributes:
    steps: time steps.
    batch: examples.
    inputs: features that layers read, summed over layers and directions.
    hidden: features of a state.
    columns: of a product, those of all gates.
    chains: number of layers times directions.
    is_gradient: 1 for the gradient, else 0.
  """

  steps: Any
  batch: Any
  inputs: Any
  hidden: Any
  columns: Any
  chains: Any
  is_gradient: Any

  @property
  def flops(self) -> float:
    """Floating-point operations of the products, a multiply-add as two."""
    rows = self.steps * self.batch
    features = self.inputs + self.chains * self.hidden
    return float(2 * rows * self.columns * features * (1 + self.is_gradient))

  @property
  def reserved(self) -> tuple[int, ...]:
    """Shape of what the forward pass keeps for the gradient, approximately."""
    kept = self.columns + _KEPT * self.hidden
    return (self.chains, self.steps, self.batch, kept)


def layers_of(
  op_type: str, attributes: Mapping[str, Any], shapes: Sequence[Sequence[int]]
) -> Layers | None:
  """Returns the sizes of an op of `FORWARD` or `GRADIENTS`, or None.

  Args:
    op_type: type of the op.
    attributes: of its node.
    shapes: static shapes of its inputs.
  """
  if len(shapes) < 2 or len(shapes[0]) != 3 or len(shapes[1]) != 3:
    return None
  order = slice(None)
  if "time_major" in attributes and not attributes["time_major"].b:
    order = slice(1, None, -1)
  (steps, batch), features = shapes[0][:2][order], shapes[0][2]
  (chains, _), hidden = shapes[1][:2][order], shapes[1][2]
  both = attributes["direction"].s == b"bidirectional"
  inner = (chains - 1 - both) * (1 + both) * hidden  # Inputs of inner layers.
  return Layers(
    steps,
    batch,
    (1 + both) * features + inner,
    hidden,
    _GATES.get(attributes["rnn_mode"].s, 1) * hidden,
    chains,
    int(op_type in GRADIENTS),
  )


def times_us(
  layers: Layers, rates: Rates, parameters: GemmParameters
) -> np.ndarray:
  """[n] microseconds of [n] stacks of layers."""
  steps, batch, inputs, hidden, columns, chains, is_gradient = layers

  def product_us(m: Any, n: Any, k: Any) -> np.ndarray:
    sizes = np.stack([np.ones_like(steps), m, n, k])
    return gemm.times_us(np.maximum(sizes, 1), rates, parameters)

  rows = steps * batch
  forward = product_us(rows, columns, inputs)
  forward += chains * steps * (_STEP_US + product_us(batch, columns, hidden))
  gradient = product_us(rows, inputs, columns)
  gradient += product_us(inputs, columns, rows)
  gradient += chains * product_us(hidden, columns, rows)
  gradient += chains * steps * (_STEP_US + product_us(batch, hidden, columns))
  return np.where(is_gradient, gradient, forward)
