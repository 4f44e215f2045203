"""Abstract interpretation of a traced graph at two batch sizes."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import tensorflow as tf

from tfplace.variants.microbatches.batch_axis.values import (
  FIXED,
  RULES,
  SIZED,
  Fixed,
  Mixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Rule,
  Sized,
  Value,
  Why,
  static_value,
)

# Ops whose outputs depend only on shapes.
_SHAPES = frozenset(("Shape", "ShapeN", "Size", "Rank"))
_INPUTS = frozenset(("Placeholder", "PlaceholderWithDefault"))


def follow(
  first: tf.Graph,
  second: tf.Graph,
  sizes: tuple[int, int],
  given: Mapping[str, Value],
  *,
  upstream: Mapping[str, str] = MappingProxyType({}),
  has_statistics: Callable[[str], bool] = lambda op: False,
) -> dict[str, Value]:
  """Computes the abstract value of every tensor of a graph, by name.

  Args:
    first: the graph at the first batch size.
    second: the graph at the second batch size.
    sizes: the two batch sizes, different and at least 2.
    given: abstract values of inputs, by tensor name; other inputs are fixed.
    upstream: name of an input -> name of the tensor whose gradient it is.
    has_statistics: name of an op -> whether it belongs to a layer that may
      compute its batch statistics per microbatch.

  Raises:
    Mixes: the graphs have different ops.
  """
  known: dict[str, Value] = {}
  twins: dict[str, str] = {}  # tensor of the second graph -> of the first
  pairs = _aligned(first, second)
  if pairs is None:
    counts = (len(graph.get_operations()) for graph in (first, second))
    raise Mixes(
      f"is traced as {next(counts)} ops for {sizes[0]} examples, and as"
      f" {next(counts)} others for {sizes[1]}"
    )
  for one, other in pairs:
    if other is None:
      values: Sequence[Value] = [Mixed(one.name, one.type, _SOME_SIZES)]
    elif one.type in _INPUTS:
      name = one.outputs[0].name
      if name in upstream:
        values = [_gradient_of(known[upstream[name]])]
      else:
        values = [given.get(name, FIXED)]
    else:
      inputs = [
        _input(known, tensor, twins.get(twin.name))
        for tensor, twin in zip(one.inputs, other.inputs, strict=False)
      ]
      values = _outputs(OpPair(one, other, sizes), inputs, has_statistics)
    for tensor, value in zip(one.outputs, values, strict=True):
      known[tensor.name] = value
    if other is not None:
      twins |= {
        twin.name: tensor.name
        for tensor, twin in zip(one.outputs, other.outputs, strict=False)
      }
  return known


def _gradient_of(value: Value) -> Value:
  """Returns the value of the gradient of the loss by a tensor."""
  if isinstance(value, Rows):
    return value.plain()
  if isinstance(value, (Fixed, Sized)):
    return Reduced("sum")
  return value if isinstance(value, Mixed) else FIXED


_SOME_SIZES = "is traced for some numbers of examples only"


def _input(
  known: Mapping[str, Value], tensor: tf.Tensor, twin: str | None
) -> Value:
  if twin != tensor.name:
    return Mixed(tensor.op.name, tensor.op.type, _SOME_SIZES)
  return known[tensor.name]


def have_same_ops(first: tf.Graph, second: tf.Graph) -> bool:
  """Returns whether two traces have the same ops in the same order.

  Constants and fills are ignored, because TensorFlow folds small fills
  (`zeros_like`) into constants, but not the larger fills of the other trace.
  """
  return _aligned(first, second) is not None


def _aligned(
  first: tf.Graph, second: tf.Graph
) -> list[tuple[tf.Operation, tf.Operation | None]] | None:
  """Pairs the ops of two traces, in the order of the first.

  Constants and fills of traces that differ are paired by name, and other ops by
  order. Returns None if other ops differ.
  """
  ops = first.get_operations(), second.get_operations()
  if _types(ops[0]) == _types(ops[1]):
    return list(zip(*ops, strict=True))
  rest = [[op for op in one if not _is_filled(op)] for one in ops]
  if _types(rest[0]) != _types(rest[1]):
    return None
  filled = {op.name: op for op in ops[1] if _is_filled(op)}
  others = iter(rest[1])
  return [
    (op, filled.get(op.name) if _is_filled(op) else next(others))
    for op in ops[0]
  ]


def _types(ops: Sequence[tf.Operation]) -> list[str]:
  return [_kind(op) for op in ops]


def _kind(op: tf.Operation) -> str:
  """Returns the op's type; a type that names a function (`Defun`) is a call."""
  if op.type in RULES or op.graph._get_function(op.type) is None:
    return op.type
  return "PartitionedCall"


def _is_filled(op: tf.Operation) -> bool:
  return op.type == "Const" or (
    op.type == "Fill" and all(t.op.type == "Const" for t in op.inputs)
  )


def _outputs(
  op: OpPair, inputs: list[Value], has_statistics: Callable[[str], bool]
) -> Sequence[Value]:
  count = len(op.first.outputs)
  if not count:
    return ()
  try:
    result = _transferred(op, inputs)
  except Mixes as mixes:
    result = _evaluated(op) or Mixed(op.name, op.type, str(mixes))
  values = list(result) if isinstance(result, Sequence) else [result] * count
  if any(isinstance(v, (Mixed, Reduced)) for v in values) and (
    has_statistics(op.name)
  ):
    values = _as_statistics(op, inputs, values)
  return values


def _as_statistics(
  op: OpPair, inputs: list[Value], values: list[Value]
) -> list[Value]:
  if op.type.startswith("FusedBatchNorm") and isinstance(inputs[0], Rows):
    return [inputs[0].plain(), *[FIXED] * (len(values) - 1)]
  if all(isinstance(v, (Rows, Fixed, Sized)) for v in inputs):
    pairs = zip(_pairs(op), values, strict=True)
    return [FIXED if _has_fixed_shape(pair) else v for pair, v in pairs]
  return values


def _pairs(op: OpPair) -> list[tuple[tf.Tensor, tf.Tensor]]:
  return list(zip(op.first.outputs, op.second.outputs, strict=False))


def _has_fixed_shape(pair: tuple[tf.Tensor, tf.Tensor]) -> bool:
  first, second = (tensor.shape for tensor in pair)
  return first.is_fully_defined() and first == second


def _transferred(op: OpPair, inputs: list[Value]) -> Value | Sequence[Value]:
  if op.type == "Const" or _kind(op.first) != _kind(op.second):
    return _of_constant(op)
  if op.type in _SHAPES:
    return _of_sizes(op)
  for value in inputs:
    if isinstance(value, Mixed):
      return value
  rule = RULES.get(_kind(op.first))
  numbers = rule.numbers if rule else "refused"
  if numbers == "read" or not any(_is_numbered(v) for v in inputs):
    return _by_rule(op, rule, inputs)
  if numbers == "kept":
    result = _by_rule(op, rule, inputs)
    if isinstance(result, Sequence) or _is_numbered(result):
      return result
  raise Mixes(Why.NUMBERS)


def _is_numbered(value: Value) -> bool:
  return isinstance(value, Rows) and value.numbered is not None


_LISTS = ("TensorListReserve", "EmptyTensorList")  # Rows may be written there.


def _by_rule(
  op: OpPair, rule: Rule | None, inputs: list[Value]
) -> Value | Sequence[Value]:
  kinds = {type(value) for value in inputs}
  if kinds <= {Fixed} and op.type not in _LISTS:
    return FIXED
  if kinds <= {Fixed, Sized}:
    folded = _folded(op)
    if folded is not None:
      return folded
    if rule is None or not rule.sizes:
      return _of_sizes(op)
  elif Sized in kinds and not (rule and rule.sizes):
    raise Mixes(Why.COUNT)
  if rule is None:
    raise Mixes("may combine the examples of the batch: its type is unknown")
  try:
    return rule.transfer(op, inputs)
  except Mixes:
    if kinds <= {Fixed, Sized}:
      return _of_sizes(op)
    raise


_MOST_FOLDED = 64  # elements of a tensor that may be evaluated


def _of_sizes(op: OpPair) -> Value:
  folded = _folded(op)
  if folded is not None:
    return folded
  if not all(map(_has_fixed_shape, _pairs(op))):
    raise Mixes("makes a tensor whose shape depends on the batch")
  return SIZED


def _folded(op: OpPair) -> Value | None:
  """Returns FIXED or SIZED for a small output with static values, else None."""
  (pair, *more) = _pairs(op)
  if more or not _has_fixed_shape(pair):
    return None
  return (
    _evaluated(op) if pair[0].shape.num_elements() <= _MOST_FOLDED else None
  )


def _evaluated(op: OpPair) -> Value | None:
  """Returns the value of one output whose entries are static, else None."""
  (pair, *more) = _pairs(op)
  if more or any(static_value(tensor) is None for tensor in pair):
    return None
  try:
    return _of_constant(op)
  except Mixes:
    return None


def _is_same(first: np.ndarray, second: np.ndarray) -> bool:
  return first.shape == second.shape and (
    np.array_equal(first, second)
    if first.dtype == object
    else first.tobytes() == second.tobytes()
  )


def _of_constant(op: OpPair) -> Value:
  first, second = (
    static_value(one.outputs[0]) for one in (op.first, op.second)
  )
  if _is_same(first, second):
    return FIXED
  if first.shape == second.shape:
    return SIZED
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
  if count == 1:
    columns = [_numbered_column(array) for array in (first, second)]
    if columns[0] == columns[1] and columns[0] is not None:
      if first.ndim == 1:
        return Rows(axis, position=True)
      return Rows(axis, column=columns[0])
  raise Mixes("is a constant that numbers the examples of the batch")


def _numbered_column(entries: np.ndarray) -> int | None:
  """Finds the column with indices of examples: [examples, ..., columns]."""
  if not np.issubdtype(entries.dtype, np.integer):
    return None
  width = entries.shape[-1] if entries.ndim > 1 else 1
  columns = entries.reshape(len(entries), -1, width)
  offsets = columns - columns[:1]
  numbers = np.arange(len(entries))
  (changing,) = np.nonzero(offsets.any(axis=(0, 1)))
  if len(changing) != 1:
    return None
  column = columns[:, :, changing[0]]
  return int(changing[0]) if (column == numbers[:, None]).all() else None
