"""Rules for ops that reduce, scan or normalize along axes."""

from tfplace.extraction.microbatches.batch_axis.registry import rule
from tfplace.extraction.microbatches.batch_axis.values import (
  FIXED,
  Fixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Value,
  join,
)

_LINEAR = {"Sum": "sum", "Mean": "mean"}


def _rows(value: Value) -> Rows:
  if isinstance(value, Rows):
    return value
  raise Mixes("computes with a sum or mean over the examples of the batch")


def _without(rows: Rows, axes: set[int]) -> Rows:
  return rows.plain(rows.axis - sum(axis < rows.axis for axis in axes))


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def _reduced(op: OpPair, inputs: list[Value]) -> Value:
  value = inputs[0]
  if not isinstance(inputs[1], Fixed):
    raise Mixes("reduces along axes that depend on the batch")
  if isinstance(value, Reduced) and op.type in _LINEAR:
    return value
  rows = _rows(value)
  axes = set(op.axes(1, op.in_rank(0)))
  if rows.axis not in axes:
    kept = op.attr("keep_dims")
    return rows.plain() if kept else _without(rows, axes)
  if op.type in _LINEAR:
    return Reduced(_LINEAR[op.type])
  raise Mixes("reduces over the examples of the batch")


@rule("L2Loss")
def _sum_of_squares(op: OpPair, inputs: list[Value]) -> Value:
  _rows(inputs[0])
  return Reduced("sum")


@rule("ArgMax", "ArgMin")
def _extreme(op: OpPair, inputs: list[Value]) -> Value:
  rows = _rows(inputs[0])
  axes = set(op.axes(1, op.in_rank(0)))
  if rows.axis in axes:
    raise Mixes("compares the examples of the batch")
  return _without(rows, axes)


@rule("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2")
def _scan(op: OpPair, inputs: list[Value]) -> Value:
  rows = _rows(inputs[0])
  if rows.axis in op.axes(1, op.in_rank(0)):
    raise Mixes("scans or reverses the examples of the batch")
  return rows.plain()


@rule("Roll")
def _roll(op: OpPair, inputs: list[Value]) -> Value:
  rows = _rows(inputs[0])
  if rows.axis in op.axes(2, op.in_rank(0)):
    raise Mixes("shifts the examples of the batch")
  return rows.plain()


def _inner(op: OpPair, value: Value, dims: int, index: int = 0) -> Rows:
  rows = _rows(value)
  if rows.axis >= op.in_rank(index) - dims:
    raise Mixes("combines the examples of the batch")
  return rows.plain()


@rule("Softmax", "LogSoftmax", "FFT", "IFFT", "RFFT", "IRFFT")
def _along_last(op: OpPair, inputs: list[Value]) -> Value:
  _check_fixed(inputs[1:])
  return _inner(op, inputs[0], 1)


@rule(
  "FFT2D", "IFFT2D", "RFFT2D", "IRFFT2D", "MatrixInverse", "MatrixDeterminant",
  "LogMatrixDeterminant", "Cholesky", "Svd", "Qr", "SelfAdjointEigV2",
  "MatrixBandPart", "MatrixDiagPart", "MatrixDiagPartV2", "MatrixDiagPartV3",
  "MatrixSetDiagV3",
)  # fmt: skip
def _of_matrices(op: OpPair, inputs: list[Value]) -> Value:
  if op.type == "MatrixSetDiagV3":
    rows = [v for v in inputs[:2] if isinstance(v, Rows)]
    _check_fixed(inputs[2:])
    return _inner(op, join(rows), 2)
  _check_fixed(inputs[1:])
  return _inner(op, inputs[0], 2)


@rule("MatrixSolve", "MatrixTriangularSolve", "MatrixSolveLs")
def _solved(op: OpPair, inputs: list[Value]) -> Value:
  """Solvers of linear systems; the last two axes are matrices."""
  _check_fixed(inputs[2:])
  rank = op.out_rank()
  rows = []
  for index, value in enumerate(inputs[:2]):
    if value != FIXED:
      one = _inner(op, value, 2, index)
      rows.append(one.plain(one.axis + rank - op.in_rank(index)))
  return join(rows)


@rule("LowerBound", "UpperBound")
def _searched(op: OpPair, inputs: list[Value]) -> Value:
  """Searches in sorted rows; all tensors are [rows, entries]."""
  joined = join([_rows(value) for value in inputs if value != FIXED])
  if joined.axis or FIXED in inputs:
    raise Mixes("looks up values in rows of other examples")
  return joined


@rule("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd")
def _segments(op: OpPair, inputs: list[Value]) -> Value:
  """Reductions of runs of the first axis, which must not be the batch axis."""
  data = _rows(inputs[0])
  if inputs[1] != FIXED or not data.axis:
    raise Mixes("reduces over the examples of the batch")
  return data.plain()


@rule("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3")
def _diagonal(op: OpPair, inputs: list[Value]) -> Value:
  _check_fixed(inputs[1:])
  return _inner(op, inputs[0], 1)


@rule("TopKV2", "TopK")
def _top(op: OpPair, inputs: list[Value]) -> Value:
  _check_fixed(inputs[1:])
  return _inner(op, inputs[0], 1)


@rule("InTopK", "InTopKV2")
def _in_top(op: OpPair, inputs: list[Value]) -> Value:
  _check_fixed(inputs[2:])
  rows = [value for value in inputs[:2] if isinstance(value, Rows)]
  joined = join(rows)
  if joined.axis:
    raise Mixes("compares the examples of the batch")
  return joined


@rule("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
def _cross_entropy(op: OpPair, inputs: list[Value]) -> Value:
  joined = join([_rows(v) for v in inputs if not isinstance(v, Fixed)])
  if joined.axis:
    raise Mixes("compares the examples of the batch")
  return joined


def _check_fixed(values: list[Value]) -> None:
  if any(value != FIXED for value in values):
    raise Mixes("has arguments that depend on the batch")
