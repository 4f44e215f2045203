"""Rules for ops that move entries: reshapes, slices, concatenations, tiles."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from tfplace.extraction.microbatches.batch_axis.values import (
  AGGREGATE,
  COMBINES,
  COUNT,
  FIXED,
  FOREIGN,
  NUMBERS,
  SIZED,
  Fixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Sized,
  Value,
  check_fixed,
  join,
  rows_in,
  rows_of,
  rule,
)

Shapes = tuple[list[int], list[int]]


def _varying(shapes: Shapes) -> list[int]:
  pairs = enumerate(zip(*shapes, strict=True))
  return [axis for axis, (first, second) in pairs if first != second]


@rule("Reshape")
def _reshape(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  if isinstance(value, (Reduced, Sized, Fixed)):
    return value
  rows = rows_in(value, COUNT)
  before, after = op.in_shapes(0)[0], op.out_shapes()[0]
  axes = _varying(op.out_shapes())
  if len(axes) != 1:
    raise Mixes("merges the examples of the batch into other axes")
  (axis,) = axes
  for outer, inner in _splits(rows, before[rows.axis] // op.sizes[0]):
    left = math.prod(before[: rows.axis]) * outer
    right = inner * math.prod(before[rows.axis + 1 :])
    new_left, new_right = math.prod(after[:axis]), math.prod(after[axis + 1 :])
    if left % new_left == 0 and right % new_right == 0:
      uniform = rows.uniform and (new_left, new_right) == (
        math.prod(before[: rows.axis]),
        math.prod(before[rows.axis + 1 :]),
      )
      column = rows.column if before[-1] == after[-1] else None
      return Rows(
        axis,
        left // new_left,
        right // new_right,
        uniform,
        rows.position,
        column,
      )
  raise Mixes("splits the batch axis across its examples")


def _splits(rows: Rows, count: int) -> list[tuple[int, int]]:
  """Lists the (outer, inner) pairs that describe the rows."""
  if not rows.uniform:
    return [(rows.outer, rows.inner)]
  return [(d, count // d) for d in range(1, count + 1) if count % d == 0]


@rule("Transpose", "ConjugateTranspose")
def _transpose(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  order = op.axes(1, op.in_rank(0))
  return rows.moved(order.index(rows.axis))


@rule("ExpandDims")
def _expand(op: OpPair, inputs: list[Value]) -> Value:
  if isinstance(inputs[0], Reduced):
    return inputs[0]
  rows = rows_in(inputs[0], COUNT)
  (new,) = op.axes(1, op.in_rank(0) + 1)
  return rows.moved(rows.axis + (new <= rows.axis))


@rule("Squeeze")
def _squeeze(op: OpPair, inputs: list[Value]) -> Value:
  if isinstance(inputs[0], Reduced):
    return inputs[0]
  rows = rows_in(inputs[0], COUNT)
  shape, rank = op.in_shapes(0)[0], op.in_rank(0)
  gone = [axis % rank for axis in op.attr("squeeze_dims")]
  gone = gone or [i for i, length in enumerate(shape) if length == 1]
  return rows.moved(rows.axis - sum(g < rows.axis for g in gone))


@rule("Bitcast")
def _bitcast(op: OpPair, inputs: list[Value]) -> Value:
  """Merging entries removes the last axis, so it must not be the batch axis."""
  rows = rows_in(inputs[0], COUNT)
  if op.out_rank() < op.in_rank(0) and rows.axis == op.in_rank(0) - 1:
    raise Mixes(COMBINES)
  return rows.plain()


@rule("Pack")
def _pack(op: OpPair, inputs: list[Value]) -> Value:
  if all(isinstance(v, (Reduced, Fixed)) for v in inputs):
    kinds = {v.kind for v in inputs if isinstance(v, Reduced)}
    if len(kinds) == 1 and (kinds == {"mean"} or FIXED not in inputs):
      return Reduced(kinds.pop())
    raise Mixes("joins a sum over examples and something that is none")
  new = op.attr("axis") % op.out_rank()
  rows = join([rows_in(value, COUNT) for value in inputs])
  axis = rows.axis + (new <= rows.axis)
  column = None
  if new == op.out_rank() - 1:
    column = _only_position(inputs)
  return Rows(axis, rows.outer, rows.inner, rows.uniform, column=column)


def _only_position(inputs: Sequence[Value]) -> int | None:
  """Returns the one input with indices of examples; rejects several."""
  found = [
    index
    for index, value in enumerate(inputs)
    if isinstance(value, Rows) and value.position
  ]
  if len(found) > 1:
    raise Mixes(NUMBERS)
  return found[0] if found else None


@rule("Unpack")
def _unpack(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  gone = op.attr("axis") % op.in_rank(0)
  if gone == rows.axis:
    raise Mixes("takes the examples of the batch apart")
  return rows.plain(rows.axis - (gone < rows.axis))


@rule("ConcatV2")
def _concat(op: OpPair, inputs: list[Value]) -> Value:
  *values, _ = inputs
  rank = op.out_rank()
  (axis,) = op.axes(len(values), rank)
  if any(isinstance(v, Fixed) for v in values):
    raise Mixes(FOREIGN)
  rows = [rows_in(value, COUNT) for value in values]
  if rows[0].axis != axis:
    joined = join(rows)
    column = None
    if axis == rank - 1:
      lengths = [op.in_shapes(i)[0][axis] for i in range(len(rows))]
      starts = [0, *itertools.accumulate(lengths)][:-1]
      numbers = [
        start + (value.column or 0)
        for start, length, value in zip(starts, lengths, rows, strict=True)
        if value.column is not None or (value.position and length == 1)
      ]
      if len(numbers) > 1:
        raise Mixes(NUMBERS)
      column = numbers[0] if numbers else None
    return Rows(
      joined.axis, joined.outer, joined.inner, joined.uniform, column=column
    )
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
  rows = rows_in(inputs[at], COUNT)
  (axis,) = op.axes(axis_at, op.in_rank(at))
  if axis != rows.axis:
    return rows.plain()
  results: list[Value] = []
  starts = [0, 0]
  for index in range(len(op.first.outputs)):
    lengths = [shape[axis] for shape in op.out_shapes(index)]
    ends = [s + n for s, n in zip(starts, lengths, strict=True)]
    parts = [slice(s, e) for s, e in zip(starts, ends, strict=True)]
    results.append(_selected(op, at, rows, axis, axis, parts))
    starts = ends
  return results


def _selected(
  op: OpPair,
  index: int,
  rows: Rows,
  axis: int,
  new_axis: int,
  parts: Sequence[slice | np.ndarray],
) -> Value:
  taken = [
    np.arange(shape[axis])[part]
    for shape, part in zip(op.in_shapes(index), parts, strict=True)
  ]
  found = list(zip(taken, op.sizes, strict=True))
  if rows.uniform:
    lengths = [len(entries) for entries in taken]
    if lengths[0] == lengths[1]:
      return FIXED
    if all(len(entries) % size == 0 for entries, size in found):
      return Rows(new_axis, 1, lengths[0] // op.sizes[0], uniform=True)
  results = {
    rows_of(entries // rows.inner % size, size, new_axis)
    for entries, size in found
  }
  if len(results) > 1:
    raise Mixes("takes some examples of the batch, or changes their order")
  (result,) = results
  return Rows(new_axis, result.outer, result.inner, position=rows.position)


@rule("Slice")
def _slice(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  before, after = op.in_shapes(0), op.out_shapes()
  axis = rows.axis
  if [s[axis] for s in before] == [s[axis] for s in after]:
    return rows.moved(axis)
  begins = op.constants(1)
  if begins[0] is None or begins[1] is None:
    raise Mixes("takes examples of the batch that depend on data")
  parts = [
    slice(int(begin[axis]), int(begin[axis]) + shape[axis])
    for begin, shape in zip(begins, after, strict=True)
  ]
  return _selected(op, 0, rows, axis, axis, parts)


@rule("StridedSlice")
def _strided_slice(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  parts, axes = [], set()
  for which, shape in enumerate(op.in_shapes(0)):
    spec = _slice_spec(op, which, len(shape))
    dims = [item for item in spec if item is not None]  # without new axes
    part = dims[rows.axis]
    if isinstance(part, int):
      raise Mixes("takes one example of the batch")
    parts.append(part)
    position = [i for i, item in enumerate(spec) if item is not None]
    kept = spec[: position[rows.axis]]
    axes.add(sum(not isinstance(item, int) for item in kept))
  (axis,) = axes
  return _selected(op, 0, rows, rows.axis, axis, parts)


def _slice_spec(op: OpPair, which: int, rank: int) -> list[slice | int | None]:
  """Returns a slice, an index (the axis goes) or None (a new axis) per axis."""
  begin, end, strides = (op.partial(i, which) for i in (1, 2, 3))
  masks = {
    name: op.attr(f"{name}_mask")
    for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
  }

  def has(name: str, i: int) -> bool:
    return bool(masks[name] >> i & 1)

  spec: list[slice | int | None] = []
  for i in range(len(begin)):
    if has("ellipsis", i):
      rest = range(i + 1, len(begin))
      after = sum(not has("new_axis", j) for j in rest)
      taken = sum(item is not None for item in spec)
      spec += [slice(None)] * (rank - taken - after)
    elif has("new_axis", i):
      spec.append(None)
    elif has("shrink_axis", i):
      spec.append(0)  # any index gives the same result
    else:
      first = None if has("begin", i) else _known(begin[i])
      last = None if has("end", i) else _known(end[i])
      spec.append(slice(first, last, _known(strides[i])))
  taken = sum(item is not None for item in spec)
  return spec + [slice(None)] * (rank - taken)


def _known(bound: int | None) -> int:
  """Returns a bound of a slice; data-dependent bounds reject a batch axis."""
  return _UNKNOWN if bound is None else int(bound)


_UNKNOWN = 1 << 30  # an empty slice, which no rule accepts on a batch axis


@rule("Tile")
def _tile(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  if isinstance(value, Fixed):
    return made(op, op.in_shapes(0))
  rows = rows_in(value, COUNT)
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


@rule("BroadcastTo")
def _broadcast_to(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  shapes = op.in_shapes(0)
  missing = op.out_rank() - op.in_rank(0)
  if isinstance(value, Fixed):
    first, second = shapes
    return made(op, ([1] * missing + first, [1] * missing + second))
  if isinstance(value, Reduced):
    raise Mixes(AGGREGATE)
  rows = rows_in(value, COUNT)
  axis = rows.axis + missing
  if _varying(op.out_shapes()) != [axis]:
    raise Mixes("repeats each example for every other")
  return rows.moved(axis)


def made(op: OpPair, before: Shapes | None = None) -> Value:
  """Returns the value of a tensor repeated per example, or of random rows.

  Args:
    op: an op whose output shape depends on the number of examples.
    before: shapes of the tensor before repetition; scalars by default.

  Raises:
    Mixes: several axes depend on the number of examples.
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


@rule("Fill", "Empty")
def _fill(op: OpPair, inputs: list[Value]) -> Value:
  check_fixed(inputs[1:], COUNT)
  return made(op)


@rule(
  "RandomUniform", "RandomUniformInt", "RandomStandardNormal",
  "TruncatedNormal", "ParameterizedTruncatedNormal", "StatelessRandomUniform",
  "StatelessRandomUniformV2", "StatelessRandomUniformInt",
  "StatelessRandomUniformIntV2", "StatelessRandomNormal",
  "StatelessRandomNormalV2", "StatelessTruncatedNormal",
  "StatelessTruncatedNormalV2", "StatelessRandomUniformFullInt",
  "StatelessRandomUniformFullIntV2", "StatelessRandomGammaV2",
  "StatelessRandomGammaV3", "StatelessRandomBinomial",
)  # fmt: skip
def _random(op: OpPair, inputs: list[Value]) -> Value:
  """Random numbers are independent, so the order of rows does not matter."""
  if any(not isinstance(value, (Fixed, Sized)) for value in inputs):
    raise Mixes("has a distribution that depends on the batch")
  return made(op)


@rule("Multinomial", "StatelessMultinomial")
def _sampled(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  if rows.axis or any(value != FIXED for value in inputs[1:]):
    raise Mixes(COMBINES)
  return rows.plain()


@rule("Pad", "PadV2", "MirrorPad")
def _pad(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  check_fixed(inputs[2:])
  before, after = op.in_shapes(0), op.out_shapes()
  if any(
    a[rows.axis] != b[rows.axis] for a, b in zip(before, after, strict=True)
  ):
    raise Mixes(FOREIGN)
  return rows.plain()


@rule("SpaceToBatchND")
def _space_to_batch(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  blocks = math.prod(op.constant(1).reshape(-1).tolist())
  if rows.axis or any(value != FIXED for value in inputs[1:]):
    raise Mixes(COMBINES)
  return Rows(0, int(blocks) * rows.outer, rows.inner)


@rule("BatchToSpaceND")
def _batch_to_space(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], COUNT)
  blocks = int(math.prod(op.constant(1).reshape(-1).tolist()))
  if rows.axis or rows.outer % blocks:
    raise Mixes(COMBINES)
  return Rows(0, rows.outer // blocks, rows.inner)


@rule("Range", "LinSpace")
def _range(op: OpPair, inputs: list[Value]) -> Value:
  lengths = tuple(shape[0] for shape in op.out_shapes())
  if lengths[0] == lengths[1]:
    return SIZED
  starts, _, steps = (op.constants(i) for i in range(3))
  counts = starts == (0, 0) and steps == (1, 1)
  if op.type == "Range" and lengths == op.sizes and counts:
    return Rows(0, position=True)
  raise Mixes(NUMBERS)
