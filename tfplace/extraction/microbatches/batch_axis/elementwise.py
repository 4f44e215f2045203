"""Rules for element-wise ops with NumPy broadcasting."""

from collections.abc import Sequence

from tfplace.extraction.microbatches.batch_axis.values import (
  AGGREGATE,
  COUNT,
  FIXED,
  SIZED,
  Fixed,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Sized,
  State,
  Value,
  join,
  rule,
)

_COPIES = (
  "Identity", "StopGradient", "PreventGradient", "CheckNumerics",
  "CheckNumericsV2", "EnsureShape", "Snapshot", "DebugGradientIdentity",
  "DebugGradientRefIdentity", "DebugIdentityV2",
)  # fmt: skip
_UNARY = (
  "Abs", "Sign", "Square", "Sqrt", "Rsqrt", "Exp", "Expm1", "Log", "Log1p",
  "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh",
  "Acosh", "Atanh", "Erf", "Erfc", "Erfinv", "Ndtri", "Sigmoid", "Relu",
  "Relu6", "Elu", "Selu", "LeakyRelu", "Softplus", "Softsign", "Reciprocal",
  "Inv", "Floor", "Ceil", "Round", "Rint", "IsNan", "IsInf", "IsFinite",
  "LogicalNot", "Invert", "Lgamma", "Digamma", "Conj", "Real", "Imag", "Angle",
  "ComplexAbs", "BesselI0", "BesselI0e", "BesselI1", "BesselI1e",
  "FakeQuantWithMinMaxArgs", "PopulationCount", "StringToHashBucketFast",
  "StringToHashBucketStrong", "StringLower", "StringUpper", "AsString",
  "Bucketize",
)  # fmt: skip
_BINARY = (
  "Div", "FloorDiv", "TruncateDiv", "Mod", "FloorMod", "TruncateMod", "Pow",
  "Maximum", "Minimum", "SquaredDifference", "Atan2", "Less", "LessEqual",
  "Greater", "GreaterEqual", "Equal", "NotEqual", "ApproximateEqual",
  "LogicalAnd", "LogicalOr", "Xdivy", "Xlogy", "Xlog1py", "Zeta", "Igamma",
  "Igammac", "Polygamma", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift",
  "RightShift", "NextAfter", "Complex", "MulNoNan", "Betainc", "ClipByValue",
  "SelectV2", "ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "LeakyReluGrad",
  "SoftplusGrad", "SoftsignGrad", "SigmoidGrad", "TanhGrad", "SqrtGrad",
  "RsqrtGrad", "InvGrad", "ReciprocalGrad", "FakeQuantWithMinMaxVars",
)  # fmt: skip
_SUMS = ("Add", "AddV2", "Sub", "AddN", "AccumulateNV2")


@rule(*_UNARY, *_BINARY)
def broadcast(op: OpPair, inputs: Sequence[Value]) -> Value:
  """Joins the rows of tensors that are broadcast against each other."""
  rank = op.out_rank()
  rows = []
  for index, value in enumerate(inputs):
    if isinstance(value, Rows):
      axis = value.axis + rank - op.in_rank(index)
      rows.append(value.plain(axis))
    elif isinstance(value, Sized):
      raise Mixes(COUNT)
    elif not isinstance(value, Fixed):
      raise Mixes(AGGREGATE)
  return join(rows) if rows else FIXED


@rule("IdentityN", *_COPIES)
def _copy(op: OpPair, inputs: list[Value]) -> list[Value]:
  return inputs


@rule("Cast")
def _cast(op: OpPair, inputs: list[Value]) -> Value:
  (value,) = inputs
  if isinstance(value, Reduced) and not op.first.outputs[0].dtype.is_floating:
    raise Mixes("rounds a sum or mean over the examples of the batch")
  return value


@rule("Neg")
def _negated(op: OpPair, inputs: list[Value]) -> Value:
  (value,) = inputs
  return value if isinstance(value, Reduced) else broadcast(op, inputs)


@rule("Select")
def _select(op: OpPair, inputs: list[Value]) -> Value:
  rank = op.in_rank(0)
  if rank == 1 and op.out_rank() > 1 and isinstance(inputs[0], Rows):
    # A vector of conditions applies to the first axis.
    others = [v for v in inputs[1:] if isinstance(v, Rows)]
    return join([inputs[0], *others])
  return broadcast(op, inputs)


@rule("BiasAdd")
def _bias(op: OpPair, inputs: list[Value]) -> Value:
  if not isinstance(inputs[1], Fixed):
    raise Mixes("adds a bias that depends on the batch")
  return broadcast(op, inputs[:1])


@rule(*_SUMS)
def _sum(op: OpPair, inputs: list[Value]) -> Value:
  if any(isinstance(value, State) for value in inputs):
    return _accumulated(op, inputs)
  kinds = {_kind(op, i, v) for i, v in enumerate(inputs)}
  if not any(isinstance(value, Reduced) for value in inputs):
    return broadcast(op, inputs)
  kinds.discard("zero")
  if kinds == {"sum"}:
    return Reduced("sum")
  if kinds <= {"mean", "fixed"}:
    return Reduced("mean")
  if any(isinstance(value, Rows) for value in inputs):
    raise Mixes(AGGREGATE)
  raise Mixes("adds a sum over examples and something that is none")


def _kind(op: OpPair, index: int, value: Value) -> str:
  if isinstance(value, Reduced):
    return value.kind
  if isinstance(value, Sized):
    return "sum" if is_count(op.constants(index), op.sizes) else "other"
  if isinstance(value, Fixed):
    first, _ = op.constants(index)
    return "zero" if first is not None and not first.any() else "fixed"
  return "other"


def _accumulated(op: OpPair, inputs: list[Value]) -> Value:
  """Returns the value of a metric variable after adding sums over examples."""
  states = [value for value in inputs if isinstance(value, State)]
  is_sum = len(states) == 1 and (op.type != "Sub" or states[0] is inputs[0])
  if not is_sum or not all(
    value is states[0] or is_additive(op, index, value)
    for index, value in enumerate(inputs)
  ):
    raise Mixes("accumulates over batches something that is no sum")
  return State(states[0].name, added=True)


def is_additive(op: OpPair, index: int, value: Value) -> bool:
  """Returns whether an input of an op adds up over microbatches."""
  return _kind(op, index, value) in ("sum", "zero")


def is_count(constants: Sequence[object], sizes: tuple[int, int]) -> bool:
  """Returns whether two constants are proportional to the batch sizes."""
  first, second = constants
  if first is None or second is None:
    return False
  if getattr(first, "shape", ()) != getattr(second, "shape", ()):
    return False
  scaled = (first * sizes[1]) == (second * sizes[0])  # type: ignore[operator]
  return bool(getattr(scaled, "all", lambda: scaled)())


@rule("Mul", "RealDiv", "DivNoNan")
def _scaled(op: OpPair, inputs: list[Value]) -> Value:
  reduced = [i for i, v in enumerate(inputs) if isinstance(v, Reduced)]
  if not reduced:
    return broadcast(op, inputs)
  other = 1 - reduced[0]
  if len(reduced) == 1 and (op.type == "Mul" or other == 1):
    kind = inputs[reduced[0]].kind  # type: ignore[union-attr]
    if isinstance(inputs[other], Fixed):
      return Reduced(kind)
    if isinstance(inputs[other], Sized) and is_count(
      op.constants(other), op.sizes
    ):
      if op.type == "Mul" and kind == "mean":
        return Reduced("sum")
      if op.type != "Mul" and kind == "sum":
        return Reduced("mean")
  raise Mixes(AGGREGATE)


@rule("ZerosLike", "OnesLike")
def _filled(op: OpPair, inputs: list[Value]) -> Value:
  (value,) = inputs
  if isinstance(value, Rows):
    return Rows(value.axis, value.outer, value.inner, uniform=True)
  return SIZED if isinstance(value, Sized) else FIXED
