"""Control edges that impose the op order of a plan on a traced step.

TensorFlow's executor runs ready ops in any order. A chain of control edges per
device imposes one order. The traced graph differs slightly from the planned
graph, and TensorFlow adds edges when the trace ends: stateful ops run in
program order (automatic control dependencies). The chains follow one total
order that agrees with all present and future edges, so they create no cycle.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import (
  get_read_write_resource_inputs,
)

_AT_ONCE = -1  # The turn of an op that the plan does not have.
# On CPUs, oneDNN's layout pass merges these with a convolution, whatever
# control edges lie between. They are in no chain, see `_before_merging`.
_MERGED = ("BiasAdd", "BiasAddGrad", "Pad")
_FILTER_GRADIENT = "BackpropFilter"


def chain_ops(graph: tf.Graph, turns: Mapping[str, int]) -> int:
  """Adds control edges so that each device runs its planned ops in turn.

  Call it at the end of a trace, before the function's graph is frozen.

  Args:
    graph: graph of the function that is being traced.
    turns: turn of each op by name. Ops without a turn run as soon as they are
      ready.

  Returns:
    The number of added edges.
  """
  count = 0
  last: dict[str, tf.Operation] = {}
  for op in total_order(graph.get_operations(), turns):
    if op.name not in turns or op.type in _MERGED:
      continue
    before = last.get(op.device)
    if before is not None and before not in _before(op):
      op._add_control_input(before)
      count += 1
    last[op.device] = op
  return count


def chain_calls(
  graph: tf.Graph,
  calls: Mapping[tf.Operation, Sequence[tf.Operation]],
  turn_of: Callable[[tf.Operation], int | None],
) -> None:
  """Adds control edges between calls of units and the ops outside of them.

  A call has the first turn of its ops.

  Args:
    calls: each call -> the ops of its unit, which no longer run.
    turn_of: turn of an op, or None.
  """
  inside = {op for ops in calls.values() for op in ops}
  turns = {}
  for op in graph.get_operations():
    found = (turn_of(one) for one in calls.get(op, [op]))
    known = [turn for turn in found if turn is not None]
    if known and op not in inside:
      turns[op.name] = min(known)
  chain_ops(graph, turns)


def total_order(
  ops: Sequence[tf.Operation], turns: Mapping[str, int]
) -> list[tf.Operation]:
  """Returns a topological order of all ops that follows their turns.

  The predecessors of an op inherit its turn if theirs is later.

  Args:
    ops: all ops of one graph, in order of creation.
    turns: turn of each op by name, see `chain_ops`.
  """
  number = {op: i for i, op in enumerate(ops)}
  readers: list[list[int]] = [[] for _ in ops]
  edges = [(number[b], i) for i, op in enumerate(ops) for b in _before(op)]
  edges += program_order(ops)
  merging = [(number[b], number[a]) for b, a in _before_merging(ops)]
  for before, after in [*edges, *merging]:
    readers[before].append(after)
  if len(_by_key(readers, range(len(ops)))) < len(ops):  # They are no order.
    for before, after in merging:
      readers[before].remove(after)
  due = [turns.get(op.name, math.inf) for op in ops]
  for i in reversed(_by_key(readers, range(len(ops)))):
    due[i] = min([due[i], *(due[reader] for reader in readers[i])])
  keys = [
    t if op.name in turns else _AT_ONCE for op, t in zip(ops, due, strict=True)
  ]
  return [ops[i] for i in _by_key(readers, keys)]


def _by_key(
  readers: Sequence[Sequence[int]], keys: Sequence[float]
) -> list[int]:
  """Returns the topological order that takes the ready op of least key."""
  missing = [0] * len(readers)
  for after in itertools.chain.from_iterable(readers):
    missing[after] += 1
  ready = [(keys[i], i) for i, count in enumerate(missing) if not count]
  heapq.heapify(ready)
  result = []
  while ready:
    _, i = heapq.heappop(ready)
    result.append(i)
    for reader in readers[i]:
      missing[reader] -= 1
      if not missing[reader]:
        heapq.heappush(ready, (keys[reader], reader))
  return result


def _before(op: tf.Operation) -> list[tf.Operation]:
  """Returns the direct predecessors of an op in the graph."""
  inputs = {tensor.op: None for tensor in op.inputs}
  return [*inputs, *op.control_inputs]


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
  found: dict[Any, bool] = {tensor.ref(): True for tensor in reads}
  found.update({tensor.ref(): False for tensor in writes})
  kinds = {tensor.dtype for tensor in op.inputs}
  if tf.variant in kinds or (op._is_stateful and not found):
    found[None] = False
  return found
