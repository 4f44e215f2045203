"""Rules for ops that look up, or add to, entries by index."""

from tfplace.extraction.microbatches.batch_axis.layout import made
from tfplace.extraction.microbatches.batch_axis.values import (
  COUNT,
  FIXED,
  NUMBERS,
  Fixed,
  Handle,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  State,
  Value,
  check_fixed,
  join,
  rows_in,
  rule,
)


@rule("ReadVariableOp")
def _read(op: OpPair, inputs: list[Value]) -> Value:
  (handle,) = inputs
  return State(handle.name) if isinstance(handle, Handle) else FIXED


def _rows(value: Value) -> Rows:
  rows = rows_in(value, "looks up a sum or mean over the examples of the batch")
  if rows.position or rows.column is not None:
    raise Mixes(NUMBERS)
  return rows


@rule("GatherV2", "ResourceGather")
def _gather(op: OpPair, inputs: list[Value]) -> Value:
  table, indices = inputs[:2]
  batch_dims = op.attr("batch_dims")
  axis = op.axes(2, op.in_rank(0))[0] if op.type == "GatherV2" else 0
  width = op.in_rank(1) - batch_dims
  if isinstance(table, Fixed):
    rows = _rows(indices)
    if rows.axis < batch_dims:
      raise Mixes("looks up rows by the number of the example")
    return rows.plain(rows.axis + axis - batch_dims)
  rows = _rows(table)
  if rows.axis == axis:
    raise Mixes("looks up examples of the batch by index")
  if isinstance(indices, Fixed):
    if rows.axis < batch_dims:
      raise Mixes("looks up rows by the number of the example")
    return rows.plain(rows.axis + (width - 1) * (rows.axis > axis))
  by = _rows(indices)
  if rows.axis >= batch_dims or by.axis != rows.axis:
    raise Mixes("looks up rows of each example for every other")
  return join([rows, by])


@rule("GatherNd", "ResourceGatherNd")
def _gather_nd(op: OpPair, inputs: list[Value]) -> Value:
  table, indices = inputs
  if not isinstance(indices, Rows):
    if not isinstance(table, Rows) or indices != FIXED:
      raise Mixes("looks up a sum or mean over the examples of the batch")
    depth = op.in_shapes(1)[0][-1]
    if table.axis < depth:
      raise Mixes("looks up examples of the batch by index")
    return table.plain(table.axis - depth + op.in_rank(1) - 1)
  last = op.in_rank(1) - 1
  if indices.axis == last:
    raise Mixes("looks up examples of the batch by index")
  if isinstance(table, Fixed):
    return _rows(indices).plain()
  column = 0 if indices.position else indices.column
  is_own = (
    isinstance(table, Rows)
    and column == table.axis
    and (table.outer, table.inner) == (1, 1)
  )
  if not is_own:
    raise Mixes("looks up examples of the batch by index")
  return indices.plain()


@rule("OneHot")
def _one_hot(op: OpPair, inputs: list[Value]) -> Value:
  rows = _rows(inputs[0])
  check_fixed(inputs[1:], "makes an entry for each pair of examples")
  new = op.attr("axis") % op.out_rank()
  return rows.plain(rows.axis + (new <= rows.axis))


@rule("UnsortedSegmentSum")
def _segment_sum(op: OpPair, inputs: list[Value]) -> Value:
  """Sums entries by segment; examples in the same segment are added."""
  data, segments, count = inputs
  if count != FIXED:
    raise Mixes("makes a segment for each example of the batch")
  if isinstance(segments, Rows):
    if isinstance(data, Rows):
      join([data, _rows(segments)])
    elif data != FIXED:
      raise Mixes(COUNT)
    return Reduced("sum")
  rows = _rows(data)
  moved = rows.axis - op.in_rank(1)
  if segments != FIXED or moved < 0:
    raise Mixes("adds examples of the batch to each other")
  return rows.plain(moved + 1)


@rule("ScatterNd")
def _scatter_nd(op: OpPair, inputs: list[Value]) -> Value:
  """Sums updates by index; an example may write to its own entries only."""
  indices, updates, shape = inputs
  if not isinstance(indices, Rows):
    raise Mixes("scatters into a tensor whose shape depends on the batch")
  if indices.axis == op.in_rank(0) - 1:
    raise Mixes("looks up examples of the batch by index")
  if isinstance(updates, Rows):
    join([indices, updates])
  elif updates != FIXED:
    raise Mixes(COUNT)
  if shape == FIXED and not (indices.position or indices.column is not None):
    return Reduced("sum")
  own = made(op)
  # One entry for each example: `made` gives the entries per example as `inner`.
  if not isinstance(own, Rows) or own.inner != 1 or own.axis != indices.column:
    raise Mixes("scatters into a tensor whose shape depends on the batch")
  return Rows(own.axis)


@rule(
  "TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub",
  "TensorScatterMax", "TensorScatterMin",
)  # fmt: skip
def _tensor_scatter(op: OpPair, inputs: list[Value]) -> Value:
  tensor, indices, updates = inputs
  if indices != FIXED:
    raise Mixes("writes examples of the batch by index")
  depth = op.in_shapes(1)[0][-1]
  rows = [_rows(tensor)] if tensor != FIXED else []
  if updates != FIXED:
    written = _rows(updates)
    axis = written.axis - (op.in_rank(1) - 1) + depth
    rows.append(written.plain(axis))
  joined = join(rows)
  if joined.axis < depth or any(r.axis != joined.axis for r in rows):
    raise Mixes("writes examples of the batch by index")
  return joined


@rule("DenseBincount", "Bincount")
def _bincount(op: OpPair, inputs: list[Value]) -> Value:
  if inputs[1] != FIXED:
    raise Mixes("counts up to a number that depends on the batch")
  values, _, weights = inputs
  joined = join([_rows(v) for v in (values, weights) if v != FIXED])
  if op.type == "DenseBincount":
    if op.in_rank(0) == 2 and joined.axis == 0:
      return joined
    if op.attr("binary_output"):
      raise Mixes("looks for a value in any example of the batch")
  return Reduced("sum")


@rule("LookupTableFindV2")
def _table(op: OpPair, inputs: list[Value]) -> Value:
  return _rows(inputs[1])
