"""Holds the ops of a step that `fit` traces to the order of its plan.

TensorFlow's executor runs ready ops in any order; a chain of control edges per
device makes it keep to one. The traced graph is not quite the planned one, and
TensorFlow adds edges of its own when the trace ends: what has a state runs in
the order of the program (automatic control dependencies). Chains follow one
order of all ops that agrees with every edge, there already or still to come, so
that there is no cycle.
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")
_AT_ONCE = -1  # turn of an op that the plan does not have


def chain_ops(graph: tf.Graph, turns: Mapping[str, int]) -> int:
  """Adds control edges, so that each device runs its planned ops in turn.

  To be called at the end of a trace, before the function's graph is frozen.

  Args:
    graph: of the function that is being traced.
    turns: op name -> when its turn comes; ops that are not there run as soon as
      they can.

  Returns:
    How many edges were added.
  """
  count = 0
  last: dict[str, tf.Operation] = {}
  for op in total_order(graph.get_operations(), turns):
    if op.name not in turns:
      continue
    before = last.get(op.device)
    if before is not None and before not in _before(op):
      op._add_control_input(before)
      count += 1
    last[op.device] = op
  return count


def total_order(
  ops: Sequence[tf.Operation], turns: Mapping[str, int]
) -> list[tf.Operation]:
  """All ops, each after what it waits for, else by their turns.

  What an op waits for comes no later than its turn.

  Args:
    ops: all of one graph, in the order in which they were made.
    turns: as of `chain_ops`.
  """
  number = {op: i for i, op in enumerate(ops)}
  readers: list[list[int]] = [[] for _ in ops]
  edges = [(number[b], i) for i, op in enumerate(ops) for b in _before(op)]
  for before, after in [*edges, *_program_order(ops)]:
    readers[before].append(after)
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
  """A topological order that takes the least key of those that are ready."""
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
  """What an op waits for by its own edges."""
  inputs = {tensor.op: None for tensor in op.inputs}
  return [*inputs, *op.control_inputs]


def _program_order(ops: Sequence[tf.Operation]) -> list[tuple[int, int]]:
  """The edges that automatic control dependencies may add, and more.

  Ops on one resource run in the order of the program, but for reads between two
  writes; so do stateful ops without a resource.
  """
  edges = []
  writes: dict[Any, int] = {}
  reads: dict[Any, list[int]] = {}
  for i, op in enumerate(ops):
    for key in _states(op):
      if key in writes:
        edges.append((writes[key], i))
      if op.type in _READS:
        reads.setdefault(key, []).append(i)
        continue
      edges += [(read, i) for read in reads.pop(key, ())]
      writes[key] = i
  return edges


def _states(op: tf.Operation) -> set[Any]:
  """The resources of an op, by their tensors; None for a state without any."""
  if op.type == "Placeholder":
    return set()
  kinds = {tensor.dtype for tensor in op.inputs}
  found: set[Any] = {t.ref() for t in op.inputs if t.dtype == tf.resource}
  if tf.variant in kinds or (op._is_stateful and not found):
    found.add(None)
  return found
