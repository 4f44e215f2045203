"""Rules for ops that move entries: reshapes, slices, concatenations, tiles."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tfplace.variants.microbatches.batch_axis.values import (
  FIXED,
  SIZED,
  Fixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Sized,
  Value,
  Why,
  join,
  rows_in,
  rows_of,
  rule,
)

Shapes = tuple[list[int], list[int]]


def _varying(shapes: Shapes) -> list[int]:
  pairs = enumerate(zip(*shapes, strict=True))
  return [axis for axis, (first, second) in pairs if first != second]


@rule("Reshape", sizes=True, numbers="kept")
def _reshape(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  if not isinstance(value, Rows):
    if op.first.outputs[0].shape != op.second.outputs[0].shape:
      raise Mixes(Why.FOREIGN)
    return value
  before, after = op.in_shapes(0)[0], op.out_shapes()[0]
  axes = _varying(op.out_shapes())
  if len(axes) != 1:
    raise Mixes("merges the examples of the batch into other axes")
  around = _around(before, value.axis)
  new_around = _around(after, axes[0])
  for outer, inner in _splits(value, before[value.axis] // op.sizes[0]):
    left, left_rest = divmod(around[0] * outer, new_around[0])
    right, right_rest = divmod(inner * around[1], new_around[1])
    if not left_rest and not right_rest:
      return Rows(
        axes[0],
        left,
        right,
        value.uniform and around == new_around,
        value.position,
        value.column if before[-1] == after[-1] else None,
      )
  raise Mixes("splits the batch axis across its examples")


def _around(shape: list[int], axis: int) -> tuple[int, int]:
  """Returns the numbers of entries before and after an axis."""
  return math.prod(shape[:axis]), math.prod(shape[axis + 1 :])


def _splits(rows: Rows, count: int) -> list[tuple[int, int]]:
  """Lists the (outer, inner) pairs that describe the rows."""
  if not rows.uniform:
    return [(rows.outer, rows.inner)]
  return [(d, count // d) for d in range(1, count + 1) if count % d == 0]


@rule("Pack", numbers="kept")
def _pack(op: OpPair, inputs: list[Value]) -> Value:
  if all(isinstance(v, (Reduced, Fixed)) for v in inputs):
    kinds = {v.kind for v in inputs if isinstance(v, Reduced)}
    if len(kinds) == 1 and (kinds == {"mean"} or FIXED not in inputs):
      return Reduced(kinds.pop())
    raise Mixes("joins a sum over examples and something that is none")
  new = op.attr("axis") % op.out_rank()
  rows = [rows_in(value, Why.COUNT) for value in inputs]
  joined = join(rows)
  numbers = []
  if new == op.out_rank() - 1:
    numbers = [i for i, value in enumerate(rows) if value.position]
  return dataclasses.replace(
    joined, axis=joined.axis + (new <= joined.axis), column=_only(numbers)
  )


def _only(numbers: Sequence[int]) -> int | None:
  """Returns the one column with indices of examples; rejects several."""
  if len(numbers) > 1:
    raise Mixes(Why.NUMBERS)
  return numbers[0] if numbers else None


@rule("ConcatV2", numbers="kept")
def _concat(op: OpPair, inputs: list[Value]) -> Value:
  *values, _ = inputs
  rank = op.out_rank()
  (axis,) = op.axes(len(values), rank)
  if any(isinstance(v, Fixed) for v in values):
    raise Mixes(Why.FOREIGN)
  rows = [rows_in(value, Why.COUNT) for value in values]
  if rows[0].axis != axis:
    numbers, start = [], 0
    for index, value in enumerate(rows if axis == rank - 1 else ()):
      length = op.in_shapes(index)[0][axis]
      if value.column is not None or (value.position and length == 1):
        numbers.append(start + (value.column or 0))
      start += length
    return dataclasses.replace(join(rows), column=_only(numbers))
  inner = {r.inner for r in rows if not r.uniform} or {1}
  if len(inner) > 1 or any(r.axis != axis for r in rows):
    raise Mixes("joins batches whose examples are in another order")
  (inner_size,) = inner
  length = op.out_shapes()[0][axis] // op.sizes[0]
  for index in range(len(rows)):
    if op.in_shapes(index)[0][axis] // op.sizes[0] % inner_size:
      raise Mixes("joins batches whose examples are in another order")
  is_uniform = all(value.uniform for value in rows)
  return Rows(axis, length // inner_size, inner_size, uniform=is_uniform)


@rule("Split", "SplitV")
def _split(op: OpPair, inputs: list[Value]) -> Value | list[Value]:
  at, axis_at = (1, 0) if op.type == "Split" else (0, 2)
  rows = rows_in(inputs[at], Why.COUNT)
  (axis,) = op.axes(axis_at, op.in_rank(at))
  if axis != rows.axis:
    return rows.plain()
  results: list[Value] = []
  starts = [0, 0]
  for index in range(len(op.first.outputs)):
    lengths = [shape[axis] for shape in op.out_shapes(index)]
    ends = [s + n for s, n in zip(starts, lengths, strict=True)]
    parts = [
      (*[slice(None)] * axis, slice(start, end))
      for start, end in zip(starts, ends, strict=True)
    ]
    results.append(_selected(op, rows, parts, at))
    starts = ends
  return results


@rule("Slice", sizes=True, numbers="kept")
def _slice(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], Why.COUNT)
  _check_sizes(inputs[1:])
  indices = []
  for which, shapes in enumerate(
    zip(op.in_shapes(0), op.out_shapes(), strict=True)
  ):
    bounds = zip(op.partial(1, which), *shapes, strict=True)
    indices.append(
      tuple(
        slice(None) if size == length
        else slice(1) if begin is None  # depends on data
        else slice(begin, begin + size)
        for begin, length, size in bounds
      )
    )  # fmt: skip
  return _selected(op, rows, indices)


@rule("StridedSlice", sizes=True, numbers="kept")
def _strided_slice(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], Why.COUNT)
  _check_sizes(inputs[1:])
  return _selected(op, rows, [_index(op, which) for which in range(2)])


def _check_sizes(arguments: Sequence[Value]) -> None:
  if not all(isinstance(value, Fixed | Sized) for value in arguments):
    raise Mixes(Why.ARGUMENTS)


_Index: TypeAlias = tuple[Any, ...]  # as NumPy takes it


def _index(op: OpPair, which: int) -> _Index:
  """Returns the index of a `StridedSlice` in one graph."""
  masks = {
    name: op.attr(f"{name}_mask")
    for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
  }
  index: list[Any] = []
  bounds = zip(*(op.partial(i, which) for i in (1, 2, 3)), strict=True)
  for i, (begin, end, stride) in enumerate(bounds):
    here = {name for name, mask in masks.items() if mask >> i & 1}
    first = None if "begin" in here else begin
    last = None if "end" in here else end
    if "ellipsis" in here:
      index.append(...)
    elif "new_axis" in here:
      index.append(None)
    elif "shrink_axis" in here:
      index.append(begin or 0)  # one that depends on data acts like any other
    elif None in (stride, "begin" in here or begin, "end" in here or end):
      index.append(slice(1))  # depends on data: not a whole batch axis
    else:
      index.append(slice(first, last, stride))
  return tuple(index)


def _selected(
  op: OpPair, rows: Rows, indices: Sequence[_Index], at: int = 0
) -> Value:
  """Returns the value of the entries of input `at` that NumPy selects."""
  shapes = op.in_shapes(at)
  (axis, first), (_, second) = (
    _taken(shape, rows.axis, index)
    for shape, index in zip(shapes, indices, strict=True)
  )
  if axis is None:
    raise Mixes("takes one example of the batch")
  if indices[0] != indices[1]:
    for other in {*range(len(shapes[0]))} - {rows.axis}:
      before, after = (
        _taken(shape, other, index)[1]
        for shape, index in zip(shapes, indices, strict=True)
      )
      if not np.array_equal(before, after):
        raise Mixes(Why.COUNT)
  selected = list(zip((first, second), op.sizes, strict=True))
  if rows.uniform:
    if len(first) == len(second):
      return FIXED
    if all(len(entries) % size == 0 for entries, size in selected):
      return Rows(axis, 1, len(first) // op.sizes[0], uniform=True)
  results = {
    rows_of(entries // rows.inner % size, size, axis)
    for entries, size in selected
  }
  if len(results) > 1:
    raise Mixes("takes some examples of the batch, or changes their order")
  return dataclasses.replace(results.pop(), position=rows.position)


def _taken(
  shape: list[int], axis: int, index: _Index
) -> tuple[int | None, np.ndarray]:
  """Returns the new place of an axis, if it stays, and its selected entries."""
  entries = np.arange(shape[axis])
  column = entries.reshape(-1, *[1] * (len(shape) - axis - 1))
  view = np.broadcast_to(column, shape)[index]
  along = [i for i, step in enumerate(view.strides) if step]
  if not along:
    return None, view[(slice(1),) * view.ndim].reshape(-1)
  last = np.moveaxis(view, along[0], -1)
  first = (0,) * (view.ndim - 1)  # entries along other axes are alike
  return along[0], last[first] if view.size else np.arange(last.shape[-1])


@rule("Tile", sizes=True, numbers="kept")
def _tile(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  if isinstance(value, Fixed):
    return made(op, op.in_shapes(0))
  rows = rows_in(value, Why.COUNT)
  if _varying(op.out_shapes()) != [rows.axis]:
    raise Mixes("repeats each example for every other")
  before, after = op.in_shapes(0), op.out_shapes()
  times = [
    a[rows.axis] // b[rows.axis] for a, b in zip(after, before, strict=True)
  ]
  if times[0] != times[1]:
    raise Mixes("repeats the batch once for each of its examples")
  outer = rows.outer * times[0]
  return dataclasses.replace(rows, outer=outer, column=None)


@rule("BroadcastTo", sizes=True, numbers="kept")
def _broadcast_to(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  shapes = op.in_shapes(0)
  missing = op.out_rank() - op.in_rank(0)
  if isinstance(value, Fixed):
    first, second = shapes
    return made(op, ([1] * missing + first, [1] * missing + second))
  if isinstance(value, Reduced):
    raise Mixes(Why.AGGREGATE)
  rows = rows_in(value, Why.COUNT)
  axis = rows.axis + missing
  if _varying(op.out_shapes()) != [axis]:
    raise Mixes("repeats each example for every other")
  return rows.moved(axis)


def made(op: OpPair, before: Shapes | None = None) -> Value:
  """Returns the value of a tensor repeated per example, or of random rows.

  `before` are the shapes of the tensor before repetition, scalars by default.
  """
  axes = _varying(op.out_shapes())
  if not axes:
    return FIXED
  if len(axes) > 1:
    raise Mixes("makes an entry for each pair of examples")
  (axis,) = axes
  first, second = op.out_shapes()
  count, rest = divmod(first[axis], op.sizes[0])
  if rest or second[axis] != count * op.sizes[1]:
    raise Mixes("makes a tensor whose size depends on the batch in its own way")
  if before is None or before[0][axis] == 1:
    return Rows(axis, 1, count, uniform=True)
  return Rows(axis, 1, count)


@rule("Fill", "Empty", sizes=True)
def _fill(op: OpPair, inputs: list[Value]) -> Value:
  if inputs[1:] not in ([], [FIXED]):
    raise Mixes(Why.COUNT)
  return made(op)


_RANDOM = """
  RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal
  ParameterizedTruncatedNormal StatelessRandomUniform StatelessRandomUniformV2
  StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomNormal
  StatelessRandomNormalV2 StatelessTruncatedNormal StatelessTruncatedNormalV2
  StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
  StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomBinomial
"""


@rule(*_RANDOM.split(), sizes=True)
def _random(op: OpPair, inputs: list[Value]) -> Value:
  """Random numbers are independent, so the order of rows does not matter."""
  _check_sizes(inputs)
  return made(op)


@rule("SpaceToBatchND")
def _space_to_batch(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], Why.COUNT)
  blocks = math.prod(op.constant(1).reshape(-1).tolist())
  if rows.axis or any(value != FIXED for value in inputs[1:]):
    raise Mixes(Why.COMBINES)
  return Rows(0, int(blocks) * rows.outer, rows.inner)


@rule("BatchToSpaceND")
def _batch_to_space(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], Why.COUNT)
  blocks = int(math.prod(op.constant(1).reshape(-1).tolist()))
  if rows.axis or rows.outer % blocks:
    raise Mixes(Why.COMBINES)
  return Rows(0, rows.outer // blocks, rows.inner)


@rule("Range", "LinSpace", sizes=True)
def _range(op: OpPair, inputs: list[Value]) -> Value:
  lengths = tuple(shape[0] for shape in op.out_shapes())
  if lengths[0] == lengths[1]:
    return SIZED
  starts, _, steps = (op.constants(i) for i in range(3))
  counts = starts == (0, 0) and steps == (1, 1)
  if op.type == "Range" and lengths == op.sizes and counts:
    return Rows(0, position=True)
  raise Mixes(Why.NUMBERS)
