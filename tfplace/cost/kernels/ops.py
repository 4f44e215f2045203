"""GPU kernels that TensorFlow ops launch.

Matrix products and convolutions are described by their sizes, all others by
the bytes that they read and write; an op that no table names counts all of its
inputs and outputs once.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.cost.kernels import recurrent
from tfplace.cost.sizes import TensorSpec

# No kernel: metadata, host code, or a buffer that is handed on.
FREE = frozenset({
  "Assert", "AssignVariableOp", "BroadcastArgs", "BroadcastGradientArgs",
  "CheckNumerics", "ConcatOffset", "Const", "DestroyResourceOp", "EnsureShape",
  "ExpandDims", "Identity", "IdentityN", "InvertPermutation", "Merge", "NoOp",
  "Placeholder", "PlaceholderWithDefault", "PreventGradient", "Rank",
  "ReadVariableOp", "RefIdentity", "Reshape", "Shape", "ShapeN", "Size",
  "Squeeze", "StopGradient", "Switch", "VarHandleOp", "VariableShape",
})  # fmt: skip

# Op -> times that its largest tensor is read or written.
_PASSES: Mapping[str, float] = {
  "AssignAddVariableOp": 3,  # reads the variable and the value, writes it
  "AssignSubVariableOp": 3,
  "FusedBatchNorm": 3,  # statistics, then the output
  "FusedBatchNormV2": 3,
  "FusedBatchNormV3": 3,
  "FusedBatchNormGrad": 5,  # reads image and gradient for sums, then again
  "FusedBatchNormGradV2": 5,
  "FusedBatchNormGradV3": 5,
  "ResourceApplyAdam": 7,
  "ResourceApplyGradientDescent": 3,
  "ResourceApplyKerasMomentum": 5,
  "ResourceApplyMomentum": 5,
  "ResourceApplyRMSProp": 7,
  "ResourceScatterAdd": 3,
  "ResourceScatterSub": 3,
  "ResourceScatterUpdate": 2,
  # Kernels of `xent_op.h` and `sparse_xent_op.h`: maximum, difference, sum of
  # exponentials, loss, gradient.
  "SoftmaxCrossEntropyWithLogits": 9,
  "SparseSoftmaxCrossEntropyWithLogits": 6,
}
# Op -> times that its outputs are read or written, whatever its inputs.
_OUTPUTS: Mapping[str, float] = {
  **dict.fromkeys(
    ("Gather", "GatherV2", "GatherNd", "ResourceGather", "Slice",
     "StridedSlice"), 2,
  ),
  **dict.fromkeys(
    ("Fill", "OnesLike", "RandomStandardNormal", "RandomUniform",
     "StatelessRandomUniformV2", "ZerosLike"), 1,
  ),
}  # fmt: skip
_ROWS = frozenset({
  "LogSoftmax", "Softmax", "SoftmaxCrossEntropyWithLogits",
  "SparseSoftmaxCrossEntropyWithLogits",
})  # fmt: skip

# Elementwise ops that broadcast their inputs.
_BROADCASTING = frozenset({
  "Add", "AddV2", "Div", "DivNoNan", "Equal", "Greater", "GreaterEqual",
  "Less", "LessEqual", "LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mul",
  "NotEqual", "Pow", "RealDiv", "SelectV2", "SquaredDifference", "Sub",
})  # fmt: skip
_TILES = ("BroadcastTo", "Tile")
_REDUCTIONS = frozenset({"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"})

CONVOLUTIONS = ("convolution", "input_gradient", "filter_gradient")
_PRECISIONS = {tf.float16: "fp16", tf.bfloat16: "bf16", tf.float64: "fp64"}
_HOST_ELEMENTS = 64  # of integers that TensorFlow keeps in host memory


class Op(NamedTuple):
  """An op with the types and shapes of its tensors.

  Attributes:
    type: of the op.
    attributes: of its node.
    inputs: one for each.
    outputs: one for each.
    axes: of a reduction, where they are static.
  """

  type: str
  attributes: Mapping[str, Any]
  inputs: Sequence[TensorSpec]
  outputs: Sequence[TensorSpec]
  axes: Sequence[int] = ()


class Kernel(NamedTuple):
  """A kernel of one class.

  Attributes:
    name: "matmul", "batch_matmul", one of `CONVOLUTIONS`, "recurrent", or a
      class of memory-bound kernels.
    precision: as asked for; the GPU may lack it.
    sizes: batch, M, N and K of a product; the fields of `convolution.Shapes` or
      `recurrent.Layers`; bytes, computed indices and terms of serial sums of a
      memory-bound one.
  """

  name: str
  precision: str
  sizes: tuple[float, ...]

  @property
  def flops(self) -> float:
    """Floating-point operations, a multiply-add as two.

    Those of a direct convolution, whatever the algorithm; 0 where memory
    limits the kernel.
    """
    if self.name in ("matmul", "batch_matmul"):
      return 2 * math.prod(self.sizes)
    if self.name in CONVOLUTIONS:
      return 2 * math.prod(self.sizes[:7])
    if self.name == "recurrent":
      return recurrent.Layers(*self.sizes).flops
    return 0.0


def reduced_axes(op: tf.Operation) -> Sequence[int]:
  """Returns the axes of a reduction, counted from 0; () for other ops."""
  rank = op.inputs[0].shape.rank if op.type in _REDUCTIONS else None
  if rank is None:
    return ()
  axes = tensor_util.try_evaluate_constant(op.inputs[1])
  return () if axes is None else (np.ravel(axes) % max(rank, 1)).tolist()


def kernel_of(op: Op, tensor_float_32: bool) -> Kernel | None:
  """The kernel that takes an op's time; None where it launches none.

  Args:
    op: with shapes; unknown sizes count as 1.
    tensor_float_32: whether float32 is multiplied in TF32 where a GPU can.
  """
  if op.type in FREE or _is_on_host(op) or _reduces_nothing(op):
    return None
  precision = _precision(op, tensor_float_32)
  product = _PRODUCTS.get(op.type)
  if product is not None:
    kernel = product(op, precision)
    if kernel is not None:
      return kernel
  return _memory_bound(op, "fp32" if precision == "tf32" else precision)


def _is_on_host(op: Op) -> bool:
  """Shapes, axes and the like: a few integers in host memory."""
  tensors = [*op.inputs, *op.outputs]
  return bool(op.outputs) and all(
    spec.dtype in (tf.int32, tf.int64)
    and spec.is_known
    and math.prod(shape(spec)) <= _HOST_ELEMENTS
    for spec in tensors
  )


def _reduces_nothing(op: Op) -> bool:
  """Returns whether a reduction forwards its input, as gradients often do.

  Those of broadcasts have axes even where nothing was broadcast
  (`tensorflow/core/kernels/reduction_ops_common.h`, "Reduces nothing").
  """
  specs = (*op.inputs[:1], *op.outputs)
  return (
    op.type in _REDUCTIONS
    and all(spec.is_known for spec in specs)
    and len({math.prod(shape(spec)) for spec in specs}) == 1
  )


def _precision(op: Op, tensor_float_32: bool) -> str:
  for spec in (*op.inputs, *op.outputs):
    if spec.dtype.is_floating:
      default = "tf32" if tensor_float_32 else "fp32"
      return _PRECISIONS.get(spec.dtype, default)
  return "fp32"


def shape(spec: TensorSpec) -> tuple[int, ...]:
  """Static sizes, 1 where one is unknown."""
  return tuple(1 if size is None else size for size in spec.shape or ())


def _matmul(op: Op, precision: str) -> Kernel | None:
  left, right = (shape(spec) for spec in op.inputs[:2])
  if len(left) < 2 or len(right) < 2:
    return None
  flags = ("transpose_a", "transpose_b", "adj_x", "adj_y")
  is_set = [name in op.attributes and op.attributes[name].b for name in flags]
  m, k = left[-2:] if not (is_set[0] or is_set[2]) else left[:-3:-1]
  n = right[-2] if is_set[1] or is_set[3] else right[-1]
  batch = math.prod(shape(op.outputs[0])[:-2])
  return _product(batch, m, n, k, precision)


def _product(
  batch: float, m: float, n: float, k: float, precision: str
) -> Kernel | None:
  if min(batch, m, n, k) < 1:
    return None
  name = "matmul" if batch == 1 else "batch_matmul"
  return Kernel(name, precision, (batch, m, n, k))


def _einsum(op: Op, precision: str) -> Kernel | None:
  equation = op.attributes["equation"].s.decode().replace(" ", "")
  operands, _, output = equation.partition("->")
  labels = operands.split(",")
  if len(labels) != 2 or "." in equation:
    return None
  size: dict[str, int] = {}
  for of_labels, spec in zip(labels, op.inputs, strict=True):
    size.update(zip(of_labels, shape(spec), strict=False))
  left, right, kept = set(labels[0]), set(labels[1]), set(output)
  parts = (
    left & right & kept,
    (left - right) & kept,
    (right - left) & kept,
    (left & right) - kept,
  )
  batch, m, n, k = (math.prod(size.get(x, 1) for x in part) for part in parts)
  return _product(batch, m, n, k, precision)


def _convolution(op: Op, precision: str) -> Kernel | None:
  """Forward, or a gradient, which has the shapes of the forward one."""
  image, filters, result = _convolution_shapes(op)
  if len(filters) not in (4, 5) or len(image) != len(filters):
    return None
  axis = _channel_axis(op, len(image))
  channels, num_filters = filters[-2:]
  groups = image[axis] / max(channels, 1)
  numbers = (*image, *filters, *result)
  if groups > 1 or min(numbers) < 1:
    return None
  spatial = [i for i in range(1, len(image)) if i != axis]
  out = [result[i] for i in spatial]
  area = filters[: len(out)]
  stride = max(op.attributes["strides"].list.i or [1])
  if any("dilations" in op.attributes and d > 1
         for d in op.attributes["dilations"].list.i):  # fmt: skip
    stride = max(stride, 2)  # no Winograd
  return Kernel(
    _gradient(op) or "convolution",
    precision,
    (
      image[0],
      math.prod(out[:-1]),
      out[-1],
      channels,
      num_filters,
      math.prod(area[:-1]),
      area[-1],
      stride,
      math.prod(image) + math.prod(result),
    ),
  )


def _convolution_shapes(op: Op) -> tuple[tuple[int, ...], ...]:
  """Image, filter and result of the forward convolution."""
  shapes, result = [shape(spec) for spec in op.inputs], shape(op.outputs[0])
  gradient = _gradient(op)
  if gradient == "input_gradient":
    return result, shapes[1], shapes[2]
  if gradient == "filter_gradient":
    return shapes[0], result, shapes[2]
  return shapes[0], shapes[1], result


def _gradient(op: Op) -> str | None:
  """Returns the kernel of a gradient, or None of a forward convolution."""
  if op.type.endswith(("BackpropInput", "BackpropInputV2")):
    return "input_gradient"
  return "filter_gradient" if "BackpropFilter" in op.type else None


def _channel_axis(op: Op, rank: int) -> int:
  is_first = False
  if "data_format" in op.attributes:
    is_first = op.attributes["data_format"].s.startswith(b"NC")
  return 1 if is_first else rank - 1


def _recurrent(op: Op, precision: str) -> Kernel | None:
  shapes = [shape(spec) for spec in op.inputs]
  layers = recurrent.layers_of(op.type, op.attributes, shapes)
  return layers and Kernel("recurrent", precision, layers)


_PRODUCTS = {
  **dict.fromkeys(
    ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul
  ),
  "Einsum": _einsum,
  **dict.fromkeys((*recurrent.FORWARD, *recurrent.GRADIENTS), _recurrent),
  **dict.fromkeys(
    (
      "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropInputV2",
      "Conv2DBackpropFilter", "Conv2DBackpropFilterV2", "Conv3D",
      "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2",
    ),
    _convolution,
  ),
}  # fmt: skip


def _memory_bound(op: Op, precision: str) -> Kernel:
  read = [spec.num_bytes for spec in op.inputs]
  written = [spec.num_bytes for spec in op.outputs]
  name = "elementwise"
  if op.type in _ROWS:
    name = "softmax"
  elif op.type.startswith("Depthwise"):
    name = "depthwise"
  num_bytes = sum(read) + sum(written)
  if op.type in _OUTPUTS:
    num_bytes = _OUTPUTS[op.type] * sum(written)
  elif op.type in _PASSES:
    num_bytes = _PASSES[op.type] * max([*read, *written], default=0.0)
  indices = _indices(op)
  if op.axes and indices:
    num_bytes += 2 * read[0]  # of the transposition
  sizes = (max(num_bytes, 1.0), indices, _serial_terms(op))
  return Kernel(name, precision, sizes)


def _indices(op: Op) -> float:
  """Returns how many indices an op computes by division.

  Tiles, and broadcasts over more than two dimensions after neighbors that are
  alike have been merged, divide once for each element and dimension (Eigen,
  `TensorBroadcasting.h`). A reduction transposes its input first if it would
  have more than three dimensions
  (`tensorflow/core/kernels/reduction_ops_common.h`), and so divides as often.
  Biases divide once for each element (`bias_op_gpu.cu.cc`).
  """
  if not op.inputs or not op.outputs:
    return 0.0
  result = shape(op.outputs[0])
  if op.type in _TILES:
    return float(math.prod(result) * len(result))
  if op.type in ("BiasAdd", "BiasAddGrad"):
    return float(math.prod(shape(op.inputs[0])))
  if op.type in _BROADCASTING:
    inputs = [shape(spec) for spec in op.inputs]
    if max(map(len, inputs)) > len(result):  # of unknown rank
      return 0.0
    aligned = [(1,) * (len(result) - len(sizes)) + sizes for sizes in inputs]
    is_same = np.equal(aligned, result).T.tolist()
    runs = _num_runs(result, is_same)
    return float(math.prod(result) * runs) if runs > 2 else 0.0
  if op.axes:
    source = shape(op.inputs[0])
    runs = _num_runs(source, [i in op.axes for i in range(len(source))])
    return float(math.prod(source) * runs) if runs > 3 else 0.0
  return 0.0


def _serial_terms(op: Op) -> float:
  """Returns how many terms each thread of a reduction adds; 0 if many share it.

  Of three dimensions, a thread sums the middle one for each element of the
  result, if that is not far longer than the others
  (`tensorflow/core/kernels/reduction_gpu_kernels.cu.h`).
  """
  source = [*enumerate(shape(op.inputs[0]))] if op.axes else []
  runs = [*itertools.groupby(i in op.axes for i, size in source if size > 1)]
  if len(runs) != 3 or runs[0][0]:
    return 0.0
  terms = math.prod(size for i, size in source if i in op.axes)
  results = math.prod(size for i, size in source if i not in op.axes)
  return float(terms) if terms < 16 * results else 0.0


def _num_runs(sizes: Sequence[int], kinds: Sequence[Any]) -> int:
  """Counts runs of dimensions of one kind, without those of size 1."""
  some = (kind for size, kind in zip(sizes, kinds, strict=True) if size > 1)
  return len([*itertools.groupby(some)])


def stacked(kernels: Sequence[Kernel]) -> np.ndarray:
  """[num_sizes, n] of kernels of one class."""
  return np.array([kernel.sizes for kernel in kernels], dtype=float).T
