"""Rules of ops that treat axes as a whole, as equations over their axes.

An equation names the axes of the inputs and of the outputs, as in Einsum and in
the sharding rules of XLA's Shardy. Examples along an axis stay apart where the
output has the axis, too, and are added up where the op sums over it.
"""

from collections.abc import Hashable, Sequence
from typing import TypeAlias

from tfplace.variants.microbatches.batch_axis.values import (
  FIXED,
  Mixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Sized,
  Value,
  Why,
  join,
  rule,
)

# Names of the axes of a tensor, or a term of an equation: a lower-case letter
# for an axis along which examples may lie, upper case for one whose entries the
# op combines, "..." for further axes and "*" for further ones that it combines.
# "_" is an argument that must be fixed, and "#" one that may be a size.
Names: TypeAlias = str | Sequence[Hashable]
_LINEAR = frozenset(
  ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Sum",
   "Mean", "Neg", "ExpandDims", "Squeeze")
)  # fmt: skip


def follow_axes(
  op: OpPair,
  inputs: Sequence[Value],
  terms: Sequence[Names],
  result: Names,
  *,
  why: str = Why.COMBINES,
  total: str | None = None,
) -> Value:
  """Follows the batch axis from the inputs to the output.

  Args:
    op: the op.
    inputs: the abstract values of its inputs.
    terms: names of the axes of the first inputs; the others must be fixed.
    result: names of the axes of the output.
    why: how the op mixes examples along an axis that it combines.
    total: "sum" or "mean" if the op adds up along axes that the result lacks.
  """
  reduced = [value for value in inputs if isinstance(value, Reduced)]
  others = [value for value in inputs if value != FIXED]
  if op.type in _LINEAR and len(reduced) == 1 and others == reduced:
    return reduced[0]
  along, rows = set(), []
  for i, value in enumerate(inputs):
    term = terms[i] if i < len(terms) else "_"
    if isinstance(value, Rows) and term not in ("_", "#"):
      along.add(_named(term, op.in_rank(i))[value.axis])
      rows.append(value)
    elif value != FIXED and not (term == "#" and isinstance(value, Sized)):
      kind = Why.COUNT if isinstance(value, Sized) else Why.AGGREGATE
      raise Mixes(Why.ARGUMENTS if term in ("_", "#") else kind)
  if len(along) > 1:
    raise Mixes("combines each example with every other")
  joined = rows[0] if len(rows) == 1 else join([r.plain(0) for r in rows])
  (name,) = along
  if isinstance(name, str) and not name.islower():
    raise Mixes(why)
  names = _named(result, op.out_rank())
  if name in names:
    return joined.moved(names.index(name))
  if total is None:
    raise Mixes(why)
  return Reduced(total)


def _named(term: Names, rank: int) -> list[Hashable]:
  """Names each axis of a tensor; further axes have numbers, from the left."""
  if not isinstance(term, str):
    return list(term)
  mark = "*" if "*" in term else "..."
  before, marked, after = term.partition(mark)
  further = range(rank - len(before) - len(after)) if marked else ()
  return [*before, *(mark if mark == "*" else i for i in further), *after]


# Equations, op types, and how these mix examples along other axes. The result
# "sum" adds up over the examples.
_EQUATIONS = (
  ("...K -> ...K", "Softmax LogSoftmax FFT IFFT RFFT IRFFT TopK TopKV2"),
  ("...K -> ...MN", "MatrixDiag MatrixDiagV2 MatrixDiagV3"),
  ("...MN -> ...MN", "FFT2D IFFT2D RFFT2D IRFFT2D MatrixInverse Cholesky Qr"
   " MatrixBandPart"),
  ("...MN -> ...K", "Svd SelfAdjointEigV2 MatrixDiagPart MatrixDiagPartV2"
   " MatrixDiagPartV3"),
  ("...MN -> ...", "MatrixDeterminant LogMatrixDeterminant"),
  ("...MN, ...K -> ...MN", "MatrixSetDiagV3"),
  # Images; the first axis is the batch in every data format.
  ("n* -> n*", "Conv Conv2D Conv3D DepthwiseConv2dNative MaxPool MaxPoolV2"
   " AvgPool MaxPool3D AvgPool3D LRN Dilation2D ResizeBilinear"
   " ResizeNearestNeighbor ResizeBicubic ResizeArea ScaleAndTranslate"
   " DepthToSpace SpaceToDepth ExtractImagePatches ExtractVolumePatches"
   " RGBToHSV HSVToRGB AdjustContrastv2 AdjustHue AdjustSaturation"
   " FractionalAvgPool FractionalMaxPool"),
  ("n*, n* -> n*", "ImageProjectiveTransformV2 ImageProjectiveTransformV3"),
  ("n*, n*, n* -> n*", "MaxPoolGrad MaxPool3DGrad"),
  ("#, n* -> n*", "AvgPoolGrad AvgPool3DGrad"),
  ("#, _, n* -> n*", "Conv2DBackpropInput Conv3DBackpropInputV2"
   " DepthwiseConv2dNativeBackpropInput"),
  ("n*, _, n* -> sum", "Conv2DBackpropFilter Conv3DBackpropFilterV2"
   " DepthwiseConv2dNativeBackpropFilter"),
  # Classes of each example, rows of sorted values, and tables.
  ("n*, n* -> n*", "InTopK InTopKV2 SoftmaxCrossEntropyWithLogits"
   " SparseSoftmaxCrossEntropyWithLogits",
   "compares the examples of the batch"),
  ("nC -> nS", "Multinomial StatelessMultinomial"),
  ("nK, nQ -> nQ", "LowerBound UpperBound",
   "looks up values in rows of other examples"),
  ("_, ... -> ...", "LookupTableFindV2"),
  ("S... -> S...", "SegmentSum SegmentMean SegmentMax SegmentMin SegmentProd",
   "reduces over the examples of the batch"),
  ("... -> ...", "BiasAdd"),
  ("... -> sum", "L2Loss"),
  ("..., _, ... -> sum", "Bincount"),
)  # fmt: skip


def _register(equation: str, op_types: str, why: str = Why.COMBINES) -> None:
  left, _, result = equation.partition(" -> ")
  terms = left.split(", ")
  total = "sum" if result == "sum" else None

  @rule(*op_types.split(), sizes="#" in left)
  def _by_equation(op: OpPair, inputs: list[Value]) -> Value:
    names = "" if total else result
    return follow_axes(op, inputs, terms, names, why=why, total=total)


for _row in _EQUATIONS:
  _register(*_row)

_ELEMENTWISE = """
  Abs Sign Square Sqrt Rsqrt Exp Expm1 Log Log1p Sin Cos Tan Asin Acos Atan
  Sinh Cosh Tanh Asinh Acosh Atanh Erf Erfc Erfinv Ndtri Sigmoid Relu Relu6
  Elu Selu LeakyRelu Softplus Softsign Reciprocal Inv Neg Floor Ceil Round
  Rint IsNan IsInf IsFinite LogicalNot Invert Lgamma Digamma Conj Real Imag
  Angle ComplexAbs BesselI0 BesselI0e BesselI1 BesselI1e
  FakeQuantWithMinMaxArgs PopulationCount StringToHashBucketFast
  StringToHashBucketStrong StringLower StringUpper AsString Bucketize Div
  FloorDiv TruncateDiv Mod FloorMod TruncateMod Pow Maximum Minimum
  SquaredDifference Atan2 Less LessEqual Greater GreaterEqual Equal NotEqual
  ApproximateEqual LogicalAnd LogicalOr Xdivy Xlogy Xlog1py Zeta Igamma
  Igammac Polygamma BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift
  NextAfter Complex MulNoNan Betainc ClipByValue SelectV2 ReluGrad Relu6Grad
  EluGrad SeluGrad LeakyReluGrad SoftplusGrad SoftsignGrad SigmoidGrad
  TanhGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad FakeQuantWithMinMaxVars
"""


@rule(*_ELEMENTWISE.split())
def broadcast(op: OpPair, inputs: Sequence[Value]) -> Value:
  """Follows an element-wise op; inputs are broadcast as in NumPy."""
  terms = [
    range(-op.in_rank(i), 0) if isinstance(value, Rows) else ()
    for i, value in enumerate(inputs)
  ]
  return follow_axes(op, inputs, terms, range(-op.out_rank(), 0))


@rule("Select")
def _select(op: OpPair, inputs: list[Value]) -> Value:
  if op.in_rank(0) != 1:
    return broadcast(op, inputs)
  # A vector of conditions applies to the first axis.
  return follow_axes(op, inputs, ["n", "n...", "n..."], "n...")


@rule("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _product(op: OpPair, inputs: list[Value]) -> Value:
  prefix = "transpose_a", "transpose_b"
  if op.type != "MatMul":
    prefix = "adj_x", "adj_y"
  left = "km" if op.attr(prefix[0]) else "mk"
  right = "nk" if op.attr(prefix[1]) else "kn"
  terms = [_matrices(op.in_rank(0), left), _matrices(op.in_rank(1), right)]
  result = _matrices(op.out_rank(), "mn")
  return follow_axes(op, inputs, terms, result, total="sum")


def _matrices(rank: int, last: str) -> list[Hashable]:
  return [*range(-rank, -2), *last]  # broadcast in front


@rule("MatrixSolve", "MatrixTriangularSolve", "MatrixSolveLs")
def _solved(op: OpPair, inputs: list[Value]) -> Value:
  terms = [_matrices(op.in_rank(i), "MN") for i in range(2)]
  return follow_axes(op, inputs, terms, _matrices(op.out_rank(), "MN"))


@rule("Einsum")
def _einsum(op: OpPair, inputs: list[Value]) -> Value:
  left, _, result = op.attr("equation").decode().partition("->")
  terms = [_of_term(t, op.in_rank(i)) for i, t in enumerate(left.split(","))]
  names = _of_term(result, op.out_rank())
  return follow_axes(op, inputs, terms, names, total="sum")


def _of_term(term: str, rank: int) -> list[Hashable]:
  before, dots, after = term.strip().partition("...")
  further = rank - len(before) - len(after) if dots else 0
  return [*map(tuple, before), *range(-further, 0), *map(tuple, after)]


@rule("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "EuclideanNorm")
def _reduced(op: OpPair, inputs: list[Value]) -> Value:
  total = {"Sum": "sum", "Mean": "mean"}.get(op.type)
  axes = op.axes(1, op.in_rank(0))
  names = ["reduced" if axis in axes else axis for axis in range(op.in_rank(0))]
  kept = ["one" if name == "reduced" else name for name in names]
  result = kept if op.attr("keep_dims") else [n for n in kept if n != "one"]
  why = "reduces over the examples of the batch"
  return follow_axes(op, inputs, [names], result, why=why, total=total)


# Op type -> the input that names the axes that it combines, and how.
_ALONG = {
  **dict.fromkeys(("ArgMax", "ArgMin"), (1, "compares")),
  **dict.fromkeys(
    ("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"),
    (1, "scans or reverses"),
  ),
  "Roll": (2, "shifts"),
}


@rule(*_ALONG)
def _along_axes(op: OpPair, inputs: list[Value]) -> Value:
  index, how = _ALONG[op.type]
  axes = op.axes(index, op.in_rank(0))
  names = ["A" if axis in axes else axis for axis in range(op.in_rank(0))]
  result = names
  if how == "compares":
    result = [name for name in names if name != "A"]
  why = f"{how} the examples of the batch"
  return follow_axes(op, inputs, [names], result, why=why)


@rule("Transpose", numbers="kept")
@rule("ConjugateTranspose")
def _transpose(op: OpPair, inputs: list[Value]) -> Value:
  order = op.axes(1, op.in_rank(0))
  return follow_axes(op, inputs, [range(len(order))], order)


@rule("ExpandDims", numbers="kept")
def _expand(op: OpPair, inputs: list[Value]) -> Value:
  return _with_axis(op, inputs, op.axes(1, op.in_rank(0) + 1)[0])


def _with_axis(op: OpPair, inputs: list[Value], new: int) -> Value:
  names: list[Hashable] = [*range(op.in_rank(0))]
  return follow_axes(op, inputs, [names], [*names[:new], "new", *names[new:]])


@rule("OneHot")
def _one_hot(op: OpPair, inputs: list[Value]) -> Value:
  return _with_axis(op, inputs, op.attr("axis") % op.out_rank())


@rule("Squeeze", numbers="kept")
def _squeeze(op: OpPair, inputs: list[Value]) -> Value:
  rank = op.in_rank(0)
  gone = [axis % rank for axis in op.attr("squeeze_dims")]
  if not gone:
    gone = [axis for axis, n in enumerate(op.in_shapes(0)[0]) if n == 1]
  result = [axis for axis in range(rank) if axis not in gone]
  return follow_axes(op, inputs, [range(rank)], result)


@rule("Unpack")
def _unpack(op: OpPair, inputs: list[Value]) -> Value:
  gone = op.attr("axis") % op.in_rank(0)
  names = ["A" if i == gone else i for i in range(op.in_rank(0))]
  result = [*range(gone), *range(gone + 1, len(names))]
  why = "takes the examples of the batch apart"
  return follow_axes(op, inputs, [names], result, why=why)


@rule("Bitcast")
def _bitcast(op: OpPair, inputs: list[Value]) -> Value:
  # The last axis holds the bytes of an entry if the ranks differ.
  result = range(min(op.in_rank(0), op.out_rank()))
  return follow_axes(op, inputs, [range(op.in_rank(0))], result)


@rule("Pad", "PadV2", "MirrorPad")
def _pad(op: OpPair, inputs: list[Value]) -> Value:
  shapes = zip(*op.in_shapes(0), *op.out_shapes(), strict=True)
  names = [
    i if (a, b) == (c, d) else "P" for i, (a, b, c, d) in enumerate(shapes)
  ]
  return follow_axes(op, inputs, [names], names, why=Why.FOREIGN)


@rule("MaxPoolWithArgmax")
def _pool_with_places(op: OpPair, inputs: list[Value]) -> Value:
  if op.attr("include_batch_in_index"):
    raise Mixes(Why.NUMBERS)
  return follow_axes(op, inputs, ["n*"], "n*")


@rule("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(op: OpPair, inputs: list[Value]) -> list[Value]:
  rest = len(op.first.outputs) - 1
  if not op.attr("is_training"):
    return [follow_axes(op, inputs, ["n*"], "n*"), *[FIXED] * rest]
  # Statistics are computed per channel.
  image = "*c" if op.attr("data_format")[-1:] == b"C" else "Nc*"
  why = "computes statistics over the examples of the batch"
  terms = [image, "c", "c", "c", "c"]
  normal, statistics = (
    follow_axes(op, inputs, terms, result, why=why) for result in (image, "c")
  )
  return [normal, *[statistics] * rest]


@rule("CudnnRNNV3")
def _recurrent_layers(op: OpPair, inputs: list[Value]) -> list[Value]:
  """Layers on the GPU, whose reserve spaces only their gradient reads."""
  if op.attr("dropout"):
    raise Mixes("drops activations by one seed for the whole batch")
  sequence, state = ("TnK", "LnK") if op.attr("time_major") else ("nTK", "nLK")
  terms = [sequence, state, state, "_", "n"]
  results = [
    follow_axes(op, inputs, terms, t) for t in (sequence, state, state)
  ]
  reserve = Mixed(op.name, op.type, Why.COMBINES)
  return [*results, reserve, reserve]


@rule("ReverseSequence")
def _reverse_sequence(op: OpPair, inputs: list[Value]) -> Value:
  names: list[Hashable] = [*range(op.in_rank(0))]
  names[op.attr("batch_dim")], names[op.attr("seq_dim")] = "n", "T"
  return follow_axes(op, inputs, [names, "n"], names)


@rule("DenseBincount")
def _bincount(op: OpPair, inputs: list[Value]) -> Value:
  term = "nk"[: op.in_rank(0)]  # The bins replace the last axis.
  why = "looks for a value in any example of the batch"
  total = None if op.attr("binary_output") else "sum"
  terms = [term, "_", term]
  result = f"{term[:-1]}B"
  return follow_axes(op, inputs, terms, result, why=why, total=total)
