"""Rules for copies and for arithmetic with sums over examples."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfplace.variants.microbatches.batch_axis.axes import broadcast
from tfplace.variants.microbatches.batch_axis.values import (
  FIXED,
  SIZED,
  Fixed,
  Handle,
  Mixes,
  OpPair,
  Reduced,
  Rows,
  Sized,
  State,
  Value,
  Why,
  rule,
)


@rule("Identity", "IdentityN", sizes=True, numbers="kept")
@rule("StopGradient", numbers="kept")
@rule(
  "PreventGradient", "CheckNumerics", "CheckNumericsV2", "EnsureShape",
  "Snapshot", "DebugGradientIdentity", "DebugGradientRefIdentity",
  "DebugIdentityV2",
)  # fmt: skip
def _copy(op: OpPair, inputs: list[Value]) -> list[Value]:
  return inputs


@rule("Cast", numbers="kept")
def _cast(op: OpPair, inputs: list[Value]) -> Value:
  (value,) = inputs
  if isinstance(value, Reduced) and not op.first.outputs[0].dtype.is_floating:
    raise Mixes("rounds a sum or mean over the examples of the batch")
  return value


@rule("Add", "AddV2", "Sub", "AddN", sizes=True)
@rule("AccumulateNV2")
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
    raise Mixes(Why.AGGREGATE)
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


def is_count(constants: Sequence[Any], sizes: tuple[int, int]) -> bool:
  """Returns whether two constants are proportional to the batch sizes."""
  first, second = constants
  if first is None or second is None or np.shape(first) != np.shape(second):
    return False
  return bool(np.all(first * sizes[1] == second * sizes[0]))


@rule("Mul", "RealDiv", "DivNoNan", sizes=True)
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
  raise Mixes(Why.AGGREGATE)


@rule("ReadVariableOp")
def _read(op: OpPair, inputs: list[Value]) -> Value:
  (handle,) = inputs
  return State(handle.name) if isinstance(handle, Handle) else FIXED


@rule("ZerosLike", "OnesLike", numbers="read")
def _filled(op: OpPair, inputs: list[Value]) -> Value:
  (value,) = inputs
  if isinstance(value, Rows):
    return Rows(value.axis, value.outer, value.inner, uniform=True)
  return SIZED if isinstance(value, Sized) else FIXED
