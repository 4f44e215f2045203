"""Control edges that impose the op order of a plan on a traced step.

TensorFlow's executor runs ready ops in any order. A chain of control edges per
device imposes one order. The traced graph differs slightly from the planned
graph, and TensorFlow adds edges when the trace ends: stateful ops run in
program order (automatic control dependencies). The chains follow one total
order that agrees with all present and future edges, so they create no cycle.
"""

import graphlib
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import (
  get_read_write_resource_inputs,
)

from tfplace.extraction.nodes import predecessors
from tfplace.graph.paths import smallest_first

_AT_ONCE = -1  # The turn of an op that the plan does not have.
# On CPUs, oneDNN's layout pass merges these with a convolution, whatever
# control edges lie between. They are in no chain, see `_before_merging`.
_MERGED = ("BiasAdd", "BiasAddGrad", "Pad")
_FILTER_GRADIENT = "BackpropFilter"


def chain_ops(graph: tf.Graph, turns: Mapping[str, int]) -> int:
  """Adds control edges so that each device runs its planned ops in turn.

  Call it at the end of a trace, before the function's graph is frozen. Ops
  without a turn, by name, run as soon as they are ready. Returns the number of
  added edges.
  """
  count = 0
  last: dict[str, tf.Operation] = {}
  constant: set[tf.Operation] = set()
  for op in total_order(graph.get_operations(), turns):
    sources = [tensor.op for tensor in op.inputs]
    if op.type == "Const" or (sources and constant.issuperset(sources)):
      constant.add(op)
    if op.name not in turns or op.type in _MERGED or _is_folded(op, constant):
      continue
    before = last.get(op.device)
    if before is not None and before not in predecessors(op):
      op._add_control_input(before)
      count += 1
    last[op.device] = op
  return count


def _is_folded(op: tf.Operation, constant: Set[tf.Operation]) -> bool:
  """Returns whether Grappler may fold some inputs of a concatenation.

  It then counts control edges as inputs, so the op is in no chain. Shapes are
  often constant even where their ops are not.
  """
  if op.type != "ConcatV2":
    return False
  folded = sum(tensor.op in constant for tensor in op.inputs[:-1])
  return op.outputs[0].dtype.is_integer or folded > 1


def chain_calls(
  graph: tf.Graph,
  calls: Mapping[tf.Operation, Sequence[tf.Operation]],
  turn_of: Callable[[tf.Operation], int | None],
) -> None:
  """Adds control edges between calls of units and the ops outside of them.

  A call has the first turn of its ops, which no longer run.
  """
  inside = {op for ops in calls.values() for op in ops}
  turns = {}
  for op in graph.get_operations():
    each = (turn_of(one) for one in calls.get(op, [op]))
    known = [turn for turn in each if turn is not None]
    if known and op not in inside:
      turns[op.name] = min(known)
  chain_ops(graph, turns)


def total_order(
  ops: Sequence[tf.Operation], turns: Mapping[str, int]
) -> list[tf.Operation]:
  """Returns a topological order of all ops that follows their turns.

  The predecessors of an op inherit its turn if theirs is later. Ops are given
  in order of creation.
  """
  number = {op: i for i, op in enumerate(ops)}
  before = {
    i: {number[other] for other in predecessors(op)} for op, i in number.items()
  }
  for i, j in program_order(ops):
    before[j].add(i)
  merging = {i: set(earlier) for i, earlier in before.items()}
  for one, other in _before_merging(ops):
    merging[number[other]].add(number[one])
  try:
    order = smallest_first(merging)
    before = merging
  except graphlib.CycleError:  # Both cannot be merged.
    order = smallest_first(before)
  due = [turns.get(op.name, math.inf) for op in ops]
  for i in reversed(order):
    for j in before[i]:
      due[j] = min(due[j], due[i])
  keys = [
    turn if op.name in turns else _AT_ONCE
    for op, turn in zip(ops, due, strict=True)
  ]
  return [ops[i] for i in smallest_first(before, keys.__getitem__)]


def _before_merging(
  ops: Sequence[tf.Operation],
) -> list[tuple[tf.Operation, tf.Operation]]:
  """Returns pairs whose order keeps merged convolutions free of cycles.

  A convolution that is merged with the addition of its bias also reads the
  bias. The gradient of a filter that is merged with that of the bias is
  computed before the readers of either.
  """
  pairs = []
  for op in ops:
    if op.type == "BiasAdd":
      pairs.append((op.inputs[1].op, op.inputs[0].op))
    elif op.type == "BiasAddGrad":
      readers = op.outputs[0].consumers()
      pairs += [
        (other, reader)
        for other in op.inputs[0].consumers()
        if other.type.endswith(_FILTER_GRADIENT)
        for reader in readers
      ]
  return pairs


def program_order(ops: Sequence[tf.Operation]) -> list[tuple[int, int]]:
  """Returns a superset of the edges of automatic control dependencies.

  Ops on one resource run in program order, except for the reads between two
  writes. Stateful ops without a resource run in program order, too.
  """
  edges = []
  writes: dict[Any, int] = {}
  reads: dict[Any, list[int]] = {}
  for i, op in enumerate(ops):
    for key, is_read in _states(op).items():
      if key in writes:
        edges.append((writes[key], i))
      if is_read:
        reads.setdefault(key, []).append(i)
        continue
      edges += [(read, i) for read in reads.pop(key, ())]
      writes[key] = i
  return edges


def _states(op: tf.Operation) -> dict[Any, bool]:
  """Returns the resource tensors of an op and whether it only reads them.

  None stands for other state.
  """
  if op.type == "Placeholder":
    return {}
  reads, writes = get_read_write_resource_inputs(op)
  states: dict[Any, bool] = {tensor.ref(): True for tensor in reads}
  states.update({tensor.ref(): False for tensor in writes})
  kinds = {tensor.dtype for tensor in op.inputs}
  if tf.variant in kinds or (op._is_stateful and not states):
    states[None] = False
  return states
