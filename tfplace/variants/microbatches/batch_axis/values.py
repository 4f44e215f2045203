"""Abstract values: relations of a tensor to the examples of a batch.

A rule maps the abstract values of an op's inputs to those of its outputs: one
value for all outputs, or one per output. It raises `Mixes` if the op makes an
example depend on others. Rules are never called with mixed inputs.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session as c_api
from tensorflow.python.framework import tensor_util


@dataclasses.dataclass(frozen=True)
class Fixed:
  """The same tensor in every microbatch: weights, constants, positions."""


@dataclasses.dataclass(frozen=True)
class Sized:
  """A tensor that depends on the number of examples but not on their data."""


@dataclasses.dataclass(frozen=True)
class Rows:
  """A tensor with independent examples along one axis.

  The axis has `outer * examples * inner` entries. Entry `(o * examples + e) *
  inner + i` belongs to example `e` alone.

  Attributes:
    axis: the batch axis, not negative.
    outer: repetitions around the examples, such as time steps merged with the
      batch axis.
    inner: consecutive entries of one example.
    uniform: any outer and inner are valid, as for zeros and random numbers.
    position: each entry is the index of its example in the batch.
    column: index in the last axis of entries that are such indices, or None.
  """

  axis: int
  outer: int = 1
  inner: int = 1
  uniform: bool = False
  position: bool = False
  column: int | None = None

  @property
  def numbered(self) -> int | None:
    """Returns the index in the last axis of indices of examples, if any."""
    return 0 if self.position else self.column

  def plain(self, axis: int | None = None) -> "Rows":
    """Returns rows on the given axis without facts about their entries."""
    kept = self.axis if axis is None else axis
    return Rows(kept, self.outer, self.inner, self.uniform)

  def moved(self, axis: int) -> "Rows":
    """Returns the same rows on another axis; a column is forgotten."""
    return dataclasses.replace(self, axis=axis, column=None)


@dataclasses.dataclass(frozen=True)
class Reduced:
  """A sum or mean ("kind") over the examples of a microbatch."""

  kind: str


@dataclasses.dataclass(frozen=True)
class TensorList:
  """A list of tensors (`tf.TensorArray`); `element` is None while empty."""

  element: "Value | None" = None


@dataclasses.dataclass(frozen=True)
class Handle:
  """The handle of a variable that accumulates over batches, as in a metric."""

  name: str


@dataclasses.dataclass(frozen=True)
class State:
  """The value of an accumulating variable.

  Attributes:
    name: name of its handle.
    added: whether sums over examples were added to it.
  """

  name: str
  added: bool = False


@dataclasses.dataclass(frozen=True)
class Mixed:
  """A tensor in which examples depend on each other because of op `op`.

  `why` describes the mixing, as a clause whose subject is the op.
  """

  op: str
  op_type: str
  why: str


Value: TypeAlias = (
  Fixed | Sized | Rows | Reduced | TensorList | Handle | State | Mixed
)
FIXED, SIZED = Fixed(), Sized()


class Why:
  """How an op mixes examples, as a clause whose subject is the op."""

  AGGREGATE = "computes with a sum or mean over the examples of the batch"
  COUNT = "computes with the number of examples in the batch"
  COMBINES = "combines the examples of the batch"
  NUMBERS = "numbers the examples of the batch"
  BY_INDEX = "looks up examples of the batch by index"
  ARGUMENTS = "has weights or arguments that depend on the batch"
  FOREIGN = "adds rows to the batch that are of no example"


class Mixes(Exception):
  """Raised by a rule whose op mixes examples; the text describes how."""


class OpPair:
  """One op of the step, traced in two graphs of `sizes` examples."""

  def __init__(
    self, first: tf.Operation, second: tf.Operation, sizes: tuple[int, int]
  ) -> None:
    self.first, self.second, self.sizes = first, second, sizes
    self.name: str = first.name
    self.type: str = first.type

  def attr(self, name: str) -> Any:
    """Returns an attribute, which is the same in both graphs."""
    return self.first.get_attr(name)

  def in_shapes(self, index: int) -> tuple[list[int], list[int]]:
    """Returns an input's static shapes in both graphs, or raises Mixes."""
    return _shapes(self.first.inputs[index], self.second.inputs[index])

  def out_shapes(self, index: int = 0) -> tuple[list[int], list[int]]:
    """Returns an output's static shapes in both graphs, or raises Mixes."""
    return _shapes(self.first.outputs[index], self.second.outputs[index])

  def in_rank(self, index: int) -> int:
    """Returns the rank of an input."""
    return _rank(self.first.inputs[index])

  def out_rank(self, index: int = 0) -> int:
    """Returns the rank of an output."""
    return _rank(self.first.outputs[index])

  def constants(self, index: int) -> tuple[Any, Any]:
    """Returns the static values of an input in both graphs, or None."""
    return (
      static_value(self.first.inputs[index]),
      static_value(self.second.inputs[index]),
    )

  def partial(self, index: int, which: int) -> list[int | None]:
    """Returns the static entries of an integer vector; unknown ones are None.

    `which` is 0 for the first graph and 1 for the second.
    """
    tensor = (self.first, self.second)[which].inputs[index]
    value = static_value(tensor)
    if value is None:
      value = tensor_util.constant_value(tensor, partial=True)
    if value is None:
      return [None] * (tensor.shape[0] or 0)
    return list(np.asarray(value).reshape(-1))

  def constant(self, index: int) -> np.ndarray:
    """Returns an input's static value; raises Mixes if unknown or different."""
    first, second = self.constants(index)
    if first is None or second is None or not np.array_equal(first, second):
      raise Mixes("has an argument that is no constant")
    return np.asarray(first)

  def axes(self, index: int, rank: int) -> list[int]:
    """Returns the axes that an input names, all >= 0, or raises Mixes."""
    named = self.constant(index).reshape(-1).tolist()
    return [int(axis) % rank if rank else 0 for axis in named]


def static_value(tensor: tf.Tensor) -> Any:
  """Returns the value of a tensor that depends only on constants, else None."""
  if tensor.dtype in (tf.resource, tf.variant):
    return None
  value = tf.get_static_value(tensor)
  if value is None:  # TensorFlow's own evaluation covers every op
    with tensor.graph._c_graph.get() as graph:
      value = c_api.TF_TryEvaluateConstant_wrapper(
        graph, tensor._as_tf_output()
      )
  return value


def _shapes(first: tf.Tensor, second: tf.Tensor) -> tuple[list[int], list[int]]:
  if not (first.shape.is_fully_defined() and second.shape.is_fully_defined()):
    raise Mixes("has a shape that depends on data")
  return first.shape.as_list(), second.shape.as_list()


def _rank(tensor: tf.Tensor) -> int:
  rank = tensor.shape.rank
  if rank is None:
    raise Mixes("has a rank that depends on data")
  return rank


Transfer: TypeAlias = Callable[[OpPair, list[Value]], Value | Sequence[Value]]
_T = TypeVar("_T", bound=Transfer)


class Rule(NamedTuple):
  """Rule of an op type.

  Attributes:
    transfer: maps the abstract values of the inputs to those of the outputs.
    sizes: whether inputs may depend on the number of examples.
    numbers: whether inputs may be indices of examples: "refused", "kept" (the
      outputs must be such indices again), or "read" (the rule knows them).
  """

  transfer: Transfer
  sizes: bool = False
  numbers: Literal["refused", "kept", "read"] = "refused"


RULES: dict[str, Rule] = {}


def rule(
  *op_types: str,
  sizes: bool = False,
  numbers: Literal["refused", "kept", "read"] = "refused",
) -> Callable[[_T], _T]:
  """Registers the rule of op types; see `Rule`."""

  def register(transfer: _T) -> _T:
    for op_type in op_types:
      assert op_type not in RULES, op_type
      RULES[op_type] = Rule(transfer, sizes, numbers)
    return transfer

  return register


def rows_in(value: Value, why: str) -> Rows:
  """Returns a value that must be rows, or raises Mixes."""
  if isinstance(value, Rows):
    return value
  raise Mixes(why)


def join(rows: Sequence[Rows]) -> Rows:
  """Combines rows of the same examples, or raises Mixes if these differ."""
  if not rows:
    raise Mixes(Why.AGGREGATE)
  return functools.reduce(_join, [value.plain() for value in rows])


def _join(first: Rows, second: Rows) -> Rows:
  if first.axis != second.axis:
    raise Mixes("combines each example with every other")
  if second.uniform:
    return first
  if first.uniform or first == second:
    return second
  raise Mixes("combines examples with others of their batch")


def merge(first: Value, second: Value) -> Value:
  """Returns a value that holds for both (loops, branches), or raises Mixes."""
  if first == second:
    return first
  if isinstance(first, Mixed) or isinstance(second, Mixed):
    return first if isinstance(first, Mixed) else second
  if isinstance(first, Rows) and isinstance(second, Rows):
    return join([first, second])
  if isinstance(first, TensorList) and isinstance(second, TensorList):
    if first.element is None or second.element is None:
      return second if first.element is None else first
    return TensorList(merge(first.element, second.element))
  raise Mixes("depends on the batch in some cases only")


def rows_of(examples: np.ndarray, size: int, axis: int) -> Rows:
  """Returns the rows whose entries belong to the given examples.

  Args:
    examples: [entries], the example of each entry.
    size: number of examples in the batch.
    axis: the batch axis.

  Raises:
    Mixes: examples are missing, repeated unevenly or in another order.
  """
  changes = np.flatnonzero(np.diff(examples))
  inner = int(changes[0]) + 1 if len(changes) else len(examples)
  period = size * inner
  if len(examples) and len(examples) % period == 0:
    outer = len(examples) // period
    expected = np.tile(np.repeat(np.arange(size), inner), outer)
    if np.array_equal(expected, examples):
      return Rows(axis, outer, inner)
  raise Mixes("takes some examples of the batch, or changes their order")
