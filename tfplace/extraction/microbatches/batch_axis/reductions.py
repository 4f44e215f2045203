"""Rules for ops that reduce, scan or normalize along axes."""

from tfplace.extraction.microbatches.batch_axis.values import (
  AGGREGATE,
  FIXED,
  Fixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Value,
  check_fixed,
  join,
  rows_in,
  rule,
)

_LINEAR = {"Sum": "sum", "Mean": "mean"}
# Op type -> the input that names its axes, and how it mixes examples there.
_ALONG = {
  **dict.fromkeys(("ArgMax", "ArgMin"), (1, "compares")),
  **dict.fromkeys(
    ("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"),
    (1, "scans or reverses"),
  ),
  "Roll": (2, "shifts"),
}
# Op type -> the number of last axes that it combines.
_LAST = {
  **dict.fromkeys(
    (
      "Softmax", "LogSoftmax", "FFT", "IFFT", "RFFT", "IRFFT", "MatrixDiag",
      "MatrixDiagV2", "MatrixDiagV3", "TopKV2", "TopK",
    ),
    1,
  ),
  **dict.fromkeys(
    (
      "FFT2D", "IFFT2D", "RFFT2D", "IRFFT2D", "MatrixInverse",
      "MatrixDeterminant", "LogMatrixDeterminant", "Cholesky", "Svd", "Qr",
      "SelfAdjointEigV2", "MatrixBandPart", "MatrixDiagPart",
      "MatrixDiagPartV2", "MatrixDiagPartV3",
    ),
    2,
  ),
}  # fmt: skip


def _without(rows: Rows, axes: set[int]) -> Rows:
  return rows.plain(rows.axis - sum(axis < rows.axis for axis in axes))


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def _reduced(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  if not isinstance(inputs[1], Fixed):
    raise Mixes("reduces along axes that depend on the batch")
  if isinstance(value, Reduced) and op.type in _LINEAR:
    return value
  rows = rows_in(value, AGGREGATE)
  axes = set(op.axes(1, op.in_rank(0)))
  if rows.axis not in axes:
    return rows.plain() if op.attr("keep_dims") else _without(rows, axes)
  if op.type in _LINEAR:
    return Reduced(_LINEAR[op.type])
  raise Mixes("reduces over the examples of the batch")


@rule("L2Loss")
def _sum_of_squares(op: OpPair, inputs: list[Value]) -> Value:
  rows_in(inputs[0], AGGREGATE)
  return Reduced("sum")


@rule(*_ALONG)
def _along_axes(op: OpPair, inputs: list[Value]) -> Value:
  rows = rows_in(inputs[0], AGGREGATE)
  index, mixes = _ALONG[op.type]
  axes = set(op.axes(index, op.in_rank(0)))
  if rows.axis in axes:
    raise Mixes(f"{mixes} the examples of the batch")
  return _without(rows, axes) if mixes == "compares" else rows.plain()


def _outside(op: OpPair, value: Value, dims: int, index: int = 0) -> Rows:
  """Returns the rows of an input, whose last axes must not be the batch's."""
  rows = rows_in(value, AGGREGATE)
  if rows.axis >= op.in_rank(index) - dims:
    raise Mixes("combines the examples of the batch")
  return rows.plain()


@rule(*_LAST)
def _along_last(op: OpPair, inputs: list[Value]) -> Value:
  check_fixed(inputs[1:])
  return _outside(op, inputs[0], _LAST[op.type])


@rule("MatrixSetDiagV3")
def _with_diagonal(op: OpPair, inputs: list[Value]) -> Value:
  check_fixed(inputs[2:])
  rows = [value for value in inputs[:2] if isinstance(value, Rows)]
  return _outside(op, join(rows), 2)


@rule("MatrixSolve", "MatrixTriangularSolve", "MatrixSolveLs")
def _solved(op: OpPair, inputs: list[Value]) -> Value:
  """Solvers of linear systems; the last two axes are matrices."""
  check_fixed(inputs[2:])
  rank = op.out_rank()
  rows = []
  for index, value in enumerate(inputs[:2]):
    if value != FIXED:
      one = _outside(op, value, 2, index)
      rows.append(one.plain(one.axis + rank - op.in_rank(index)))
  return join(rows)


@rule("LowerBound", "UpperBound")
def _searched(op: OpPair, inputs: list[Value]) -> Value:
  """Searches in sorted rows; all tensors are [rows, entries]."""
  joined = join([rows_in(v, AGGREGATE) for v in inputs if v != FIXED])
  if joined.axis or FIXED in inputs:
    raise Mixes("looks up values in rows of other examples")
  return joined


@rule("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd")
def _segments(op: OpPair, inputs: list[Value]) -> Value:
  """Reductions of runs of the first axis, which must not be the batch axis."""
  data = rows_in(inputs[0], AGGREGATE)
  if inputs[1] != FIXED or not data.axis:
    raise Mixes("reduces over the examples of the batch")
  return data.plain()


@rule(
  "InTopK", "InTopKV2", "SoftmaxCrossEntropyWithLogits",
  "SparseSoftmaxCrossEntropyWithLogits",
)  # fmt: skip
def _compared(op: OpPair, inputs: list[Value]) -> Value:
  """Compares the classes of each example: [examples, classes]."""
  check_fixed(inputs[2:])
  joined = join([rows_in(v, AGGREGATE) for v in inputs[:2] if v != FIXED])
  if joined.axis:
    raise Mixes("compares the examples of the batch")
  return joined
