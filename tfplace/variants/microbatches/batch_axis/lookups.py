"""Rules for ops that look up, or add to, entries by index."""

from tfplace.variants.microbatches.batch_axis.axes import follow_axes
from tfplace.variants.microbatches.batch_axis.entries import made
from tfplace.variants.microbatches.batch_axis.values import (
  FIXED,
  Fixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Value,
  Why,
  join,
  rule,
)


@rule("GatherV2", "ResourceGather")
def _gather(op: OpPair, inputs: list[Value]) -> Value:
  batch_dims, depth = op.attr("batch_dims"), op.in_rank(1)
  rank = op.out_rank() - depth + batch_dims + 1  # of the table
  axis = op.axes(2, rank)[0] if op.type == "GatherV2" else 0
  table = ["T" if i == axis else i for i in range(rank)]
  indices = [i if i < batch_dims else f"i{i}" for i in range(depth)]
  result = [*table[:axis], *indices[batch_dims:], *table[axis + 1 :]]
  return follow_axes(op, inputs, [table, indices], result, why=Why.BY_INDEX)


@rule("GatherNd", "ResourceGatherNd", numbers="read")
def _gather_nd(op: OpPair, inputs: list[Value]) -> Value:
  table, indices = inputs
  last = op.in_rank(1) - 1
  if isinstance(indices, Rows) and (column := indices.numbered) is not None:
    if isinstance(table, Fixed):
      raise Mixes(Why.NUMBERS)
    is_own = (
      isinstance(table, Rows)
      and (column, 1, 1) == (table.axis, table.outer, table.inner)
      and indices.axis != last
    )
    if not is_own:
      raise Mixes(Why.BY_INDEX)
    return indices.plain()
  depth = op.in_shapes(1)[0][last]
  rest = range(op.out_rank() - last)
  names = [f"i{i}" for i in range(last)]
  terms = [[*["T"] * depth, *rest], [*names, "D"]]
  return follow_axes(op, inputs, terms, [*names, *rest], why=Why.BY_INDEX)


@rule("UnsortedSegmentSum")
def _segment_sum(op: OpPair, inputs: list[Value]) -> Value:
  """Sums entries by segment; examples in the same segment are added."""
  names = [f"i{i}" for i in range(op.in_rank(1))]
  rest = range(op.out_rank() - 1)
  terms = [[*names, *rest], names]
  return follow_axes(op, inputs, terms, ["S", *rest], total="sum")


@rule("ScatterNd", sizes=True, numbers="read")
def _scatter_nd(op: OpPair, inputs: list[Value]) -> Value:
  """Sums updates by index; an example may write to its own entries only."""
  indices, updates, shape = inputs
  if not isinstance(indices, Rows):
    raise Mixes("scatters into a tensor whose shape depends on the batch")
  if indices.axis == op.in_rank(0) - 1:
    raise Mixes(Why.BY_INDEX)
  if isinstance(updates, Rows):
    join([indices, updates])
  elif updates != FIXED:
    raise Mixes(Why.COUNT)
  if shape == FIXED and indices.numbered is None:
    return Reduced("sum")
  rows = made(op)
  # One entry for each example: `made` gives the entries per example as `inner`.
  if (
    not isinstance(rows, Rows) or rows.inner != 1 or rows.axis != indices.column
  ):
    raise Mixes("scatters into a tensor whose shape depends on the batch")
  return Rows(rows.axis)


@rule(
  "TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub",
  "TensorScatterMax", "TensorScatterMin",
)  # fmt: skip
def _tensor_scatter(op: OpPair, inputs: list[Value]) -> Value:
  depth = op.in_shapes(1)[0][-1]
  rest = range(op.out_rank() - depth)
  tensor = [*["T"] * depth, *rest]
  updates = [*["U"] * (op.in_rank(1) - 1), *rest]
  why = "writes examples of the batch by index"
  return follow_axes(op, inputs, [tensor, "_", updates], tensor, why=why)
