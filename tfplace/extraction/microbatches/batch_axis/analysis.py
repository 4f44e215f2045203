"""Follows what each tensor of a traced graph holds of the batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.extraction.microbatches.batch_axis.registry import RULES
from tfplace.extraction.microbatches.batch_axis.values import (
  FIXED,
  SIZED,
  Fixed,
  Mixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Sized,
  Value,
  static_value,
)

# Their outputs depend on shapes alone.
_SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank"))
_INPUTS = frozenset(("Placeholder", "PlaceholderWithDefault"))
# Ops that make tensors from sizes have rules that say what becomes of them.
_SIZES_ASIDE = frozenset(
  (
    "Fill", "BroadcastTo", "Tile", "Range", "LinSpace", "Reshape", "Add",
    "AddV2", "Sub", "AddN", "Mul", "RealDiv", "DivNoNan", "Slice",
    "StridedSlice", "TensorListReserve", "EmptyTensorList",
    "TensorListFromTensor", "TensorListStack", "TensorListGetItem",
    "TensorListConcatV2", "Conv2DBackpropInput", "Conv3DBackpropInputV2",
    "DepthwiseConv2dNativeBackpropInput", "While", "StatelessWhile", "If",
    "StatelessIf", "PartitionedCall", "StatefulPartitionedCall", "AvgPoolGrad",
    "AvgPool3DGrad", "IdentityN", "Identity",
  )
)  # fmt: skip


# Ops that pass the numbers of examples on, or look up examples by them.
_NUMBERS_ASIDE = frozenset(
  (
    "Identity", "IdentityN", "Cast", "StopGradient", "Reshape", "ExpandDims",
    "Squeeze", "Transpose", "Tile", "BroadcastTo", "Pack", "ConcatV2", "Slice",
    "StridedSlice", "GatherNd", "ZerosLike", "OnesLike", "PartitionedCall",
    "StatefulPartitionedCall",
  )
)  # fmt: skip


def _is_numbered(value: Value) -> bool:
  return isinstance(value, Rows) and (
    value.position or value.column is not None
  )


def _takes_sizes(op_type: str) -> bool:
  return op_type in _SIZES_ASIDE or "Random" in op_type


def follow(
  first: tf.Graph,
  second: tf.Graph,
  sizes: tuple[int, int],
  given: Mapping[str, Value],
  has_statistics: Callable[[str], bool] = lambda op: False,
) -> dict[str, Value]:
  """Follows the batch through a graph that was traced at two batch sizes.

  Args:
    first: the graph at the first size.
    second: the same at the second size.
    sizes: numbers of examples, two that differ, both at least 2.
    given: name of an input of the graph -> what it holds; others are fixed.
    has_statistics: whether an op, by name, belongs to a layer whose statistics
      over the batch may be those of the microbatch.

  Returns:
    Tensor name -> what it holds.

  Raises:
    Mixes: the graphs have different ops.
  """
  ops = first.get_operations(), second.get_operations()
  if [op.type for op in ops[0]] != [op.type for op in ops[1]]:
    raise Mixes(
      f"is traced as {len(ops[0])} ops for {sizes[0]} examples, and as"
      f" {len(ops[1])} others for {sizes[1]}"
    )
  found: dict[str, Value] = {}
  for one, other in zip(*ops, strict=True):
    pair = OpPair(one, other, sizes)
    if one.type in _INPUTS:
      name = one.outputs[0].name
      found[name] = given.get(name, FIXED)
      continue
    inputs = [found[tensor.name] for tensor in one.inputs]
    outputs = _outputs(pair, inputs, has_statistics)
    for tensor, value in zip(one.outputs, outputs, strict=True):
      found[tensor.name] = value
  return found


def _outputs(
  op: OpPair, inputs: list[Value], has_statistics: Callable[[str], bool]
) -> Sequence[Value]:
  count = len(op.first.outputs)
  if not count:
    return ()
  try:
    result = _transferred(op, inputs)
  except Mixes as mixes:
    result = Mixed(op.name, op.type, str(mixes))
  values = list(result) if isinstance(result, Sequence) else [result] * count
  if any(isinstance(v, (Mixed, Reduced)) for v in values) and (
    has_statistics(op.name)
  ):
    values = _as_statistics(op, inputs, values)
  return values


def _as_statistics(
  op: OpPair, inputs: list[Value], values: list[Value]
) -> list[Value]:
  """What an op gives whose reductions over the batch are allowed."""
  if op.type.startswith("FusedBatchNorm") and isinstance(inputs[0], Rows):
    return [inputs[0].plain(), *[FIXED] * (len(values) - 1)]
  if all(isinstance(v, (Rows, Fixed, Sized)) for v in inputs):
    return [FIXED if _has_fixed_shape(t) else v for t, v in _each(op, values)]
  return values


def _each(op: OpPair, values: list[Value]) -> Any:
  pairs = zip(op.first.outputs, op.second.outputs, strict=True)
  return zip(pairs, values, strict=True)


def _has_fixed_shape(pair: tuple[tf.Tensor, tf.Tensor]) -> bool:
  first, second = (tensor.shape for tensor in pair)
  return first.is_fully_defined() and first == second


def _transferred(op: OpPair, inputs: list[Value]) -> Value | Sequence[Value]:
  """What the outputs hold.

  Raises:
    Mixes: the op mixes examples.
  """
  if op.type == "Const":
    return _of_constant(op)
  if op.type in _SHAPES:
    return _of_sizes(op)
  for value in inputs:
    if isinstance(value, Mixed):
      return value
    if _is_numbered(value) and op.type not in _NUMBERS_ASIDE:
      raise Mixes("numbers the examples of the batch")
  rule = RULES.get(op.type)
  kinds = {type(value) for value in inputs}
  if kinds <= {Fixed} and (rule is None or "Random" not in op.type):
    return FIXED
  if kinds <= {Fixed, Sized} and (folded := _folded(op)) is not None:
    return folded
  if Sized in kinds and not _takes_sizes(op.type):
    if kinds <= {Fixed, Sized}:
      return _of_sizes(op)
    raise Mixes("computes with the number of examples in the batch")
  if rule is None:
    raise Mixes("may combine the examples of the batch: its type is unknown")
  if kinds <= {Fixed, Sized} and op.type in _ARITHMETIC:
    return _of_sizes(op)
  return rule(op, inputs)


_ARITHMETIC = frozenset(
  ("Add", "AddV2", "Sub", "AddN", "Mul", "RealDiv", "DivNoNan", "Identity",
   "Slice", "StridedSlice")
)  # fmt: skip
_MOST_FOLDED = 64  # entries of a tensor that is evaluated


def _folded(op: OpPair) -> Value | None:
  """FIXED, where the output has the same static value at both sizes."""
  if len(op.first.outputs) != 1:
    return None
  tensors = op.first.outputs[0], op.second.outputs[0]
  shapes = [tensor.shape for tensor in tensors]
  if not shapes[0].is_fully_defined() or shapes[0] != shapes[1]:
    return None
  if shapes[0].num_elements() > _MOST_FOLDED:
    return None
  values = [static_value(tensor) for tensor in tensors]
  if values[0] is None or values[1] is None:
    return None
  return FIXED if np.array_equal(values[0], values[1]) else SIZED


def _of_sizes(op: OpPair) -> Value:
  """What is made of sizes alone."""
  folded = _folded(op)
  if folded is not None:
    return folded
  for first, second in zip(op.first.outputs, op.second.outputs, strict=True):
    if not _has_fixed_shape((first, second)):
      raise Mixes("makes a tensor whose shape depends on the batch")
  return SIZED


def _of_constant(op: OpPair) -> Value:
  """A constant; one that differs between the graphs depends on the batch."""
  protos = [one.get_attr("value") for one in (op.first, op.second)]
  if protos[0] == protos[1]:
    return FIXED
  first, second = (tf.make_ndarray(proto) for proto in protos)
  if first.shape == second.shape:
    return FIXED if np.array_equal(first, second) else SIZED
  axes = []
  if first.ndim == second.ndim:
    lengths = zip(first.shape, second.shape, strict=True)
    axes = [axis for axis, (a, b) in enumerate(lengths) if a != b]
  if len(axes) != 1:
    raise Mixes("is a constant with an entry for each pair of examples")
  (axis,) = axes
  return _of_entries(
    np.moveaxis(first, axis, 0), np.moveaxis(second, axis, 0), axis, op.sizes
  )


def _of_entries(
  first: np.ndarray, second: np.ndarray, axis: int, sizes: tuple[int, int]
) -> Value:
  """What constants of the two graphs hold, the batch axis first."""
  count, rest = divmod(len(first), sizes[0])
  if rest or len(second) != count * sizes[1]:
    raise Mixes("is a constant whose size depends on the batch in its own way")
  is_same = np.array_equal(second[:1], first[:1])
  if is_same and all((a == a[:1]).all() for a in (first, second)):
    return Rows(axis, 1, count, uniform=True)
  for outer in range(1, count + 1):
    if count % outer:
      continue
    inner = count // outer
    views = [
      np.moveaxis(array.reshape(outer, size, inner, *array.shape[1:]), 1, 0)
      for array, size in zip((first, second), sizes, strict=True)
    ]
    if np.array_equal(views[0][:1], views[1][:1]) and all(
      (view == view[:1]).all() for view in views
    ):
      return Rows(axis, outer, inner)
  if first.ndim == 1 and count == 1:
    numbers = [np.arange(size) for size in sizes]
    if np.array_equal(first, numbers[0]) and np.array_equal(second, numbers[1]):
      return Rows(axis, position=True)
  raise Mixes("is a constant that numbers the examples of the batch")
