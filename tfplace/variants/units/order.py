"""Order of a graph's ops, and which units of a device may be merged."""

import graphlib
import heapq
from collections.abc import (
  Callable,
  Container,
  Hashable,
  Iterable,
  Mapping,
  Sequence,
  Set,
)
from typing import Any

import tensorflow as tf

from tfplace.graph.microbatches import microbatch_of
from tfplace.variants.units import forming

READ = "ReadVariableOp"


class Flow:
  """The order of a graph's ops, and those of which each unit has a copy.

  Attributes:
    ops: all ops.
    wanted: references to tensors that the graph's user reads.
    copied: positions of small constants and of reads of variables, which units
      read from the variable itself. All else is about the other ops.
    same: name of a copied read -> the first that reads the same value.
    before: predecessors of each op.
    order: topological order, as ops were created where edges allow it.
    later: positions of ops in program order, pair by pair.
    earlier: name of an op -> ops before it in program order.
  """

  def __init__(
    self,
    ops: Sequence[tf.Operation],
    wanted: Set[Any],
    later: Iterable[tuple[int, int]],
    copies_reads: bool,
  ) -> None:
    self.ops, self.wanted = ops, wanted
    index = {op.name: i for i, op in enumerate(ops)}
    before = [[index[other.name] for other in _before(op)] for op in ops]
    self.earlier: dict[str, list[str]] = {}
    after: dict[int, list[int]] = {}
    self.later = list(later)
    for one, other in self.later:
      before[other].append(one)
      after.setdefault(one, []).append(other)
      self.earlier.setdefault(ops[other].name, []).append(ops[one].name)
    order = _sorted(dict(enumerate(before)))
    place = {i: at for at, i in enumerate(order)}
    self.copied = {i for i, op in enumerate(ops) if _is_inlined(op)}
    self.same: dict[str, tf.Tensor] = {}
    first: dict[Any, tf.Tensor] = {}
    for i, op in enumerate(ops):
      if copies_reads and self._is_free(op):
        # A copy is read when its reader runs, which no write may precede.
        readers = [index[reader.name] for reader in op.outputs[0].consumers()]
        writes = after.get(i, [])
        if all(place[r] < place[w] for r in readers for w in writes):
          self.copied.add(i)
          value = op.inputs[0].ref(), *self.earlier.get(op.name, ()), *writes
          self.same[op.name] = first.setdefault(value, op.outputs[0])
          for write in writes:
            before[write] += readers
    self.order = [i for i in order if i not in self.copied]
    self.before = [
      [
        at
        for other in them
        for at in (before[other] if other in self.copied else (other,))
        if at not in self.copied
      ]
      for them in before
    ]
    self.copies = {ops[i].name for i in self.copied}

  def listed(self, call_of: Mapping[str, tf.Operation]) -> list[tf.Operation]:
    """Returns what runs of a graph with calls, in program order.

    Args:
      call_of: op of a unit -> its call, which the graph has by now.
    """
    graph = self.ops[0].graph
    ops = [
      op
      for op in graph.get_operations()
      if op.name not in call_of
      and not (op.name in self.copies and self._is_inside(op, call_of))
    ]
    number = {op.name: i for i, op in enumerate(ops)}
    before = {
      i: {number[o.name] for o in _before(op)} for i, op in enumerate(ops)
    }
    known = [number.get(call_of.get(op.name, op).name) for op in self.ops]
    pairs = [(a, b) for b, them in enumerate(self.before) for a in them]
    for first, second in (*pairs, *self.later):
      a, b = known[first], known[second]
      if a is not None and b is not None and a != b:
        before[b].add(a)
    return [ops[i] for i in _sorted(before)]

  def _is_inside(self, op: tf.Operation, units_: Container[str]) -> bool:
    """Returns whether an op's tensor has readers, and all are ops of units."""
    (tensor,) = op.outputs
    names = [reader.name for reader in tensor.consumers()]
    is_inside = bool(names) and all(name in units_ for name in names)
    return is_inside and tensor.ref() not in self.wanted

  def _is_free(self, op: tf.Operation) -> bool:
    """Returns whether an op is a read that only its variable orders."""
    if op.type != READ or op.control_inputs or op._control_outputs:
      return False
    return op.outputs[0].ref() not in self.wanted


def merged(
  flow: Flow, found: Sequence[int], turn_of: Callable[[str], int | None]
) -> list[Hashable | None]:
  """Returns a key of each op that units share which may be merged.

  A unit of the same device and microbatch is merged with those before it unless
  it waits for a transfer, or one of them sends a result. In turn, no unit of
  another microbatch is between them.

  Args:
    found: unit of each op, or -1.
    turn_of: turn of an op by name, or None in order of arrival.
  """
  ops = flow.ops
  vertex = [at if at >= 0 else -1 - i for i, at in enumerate(found)]
  first: dict[int, int] = {}
  earlier: dict[int, dict[int, None]] = {}
  turns: dict[int, float] = {}
  for i in flow.order:
    at = vertex[i]
    first.setdefault(at, i)
    turn = turn_of(ops[i].name)
    if turn is not None:
      turns[at] = min(turns.get(at, turn), turn)
    earlier.setdefault(at, {}).update(
      {vertex[j]: None for j in flow.before[i] if vertex[j] != at}
    )
  part = {
    at: (ops[i].device, microbatch_of(ops[i].name)) for at, i in first.items()
  }

  def is_apart(one: int, other: int) -> bool:
    """Returns whether a transfer or another microbatch is between vertices."""
    (device, mine), (far, its) = part[one], part[other]
    is_sent = bool(device) and bool(far) and device != far
    return is_sent or (None not in (mine, its) and mine != its)

  sends = {b for a, them in earlier.items() for b in them if is_apart(b, a)}
  sequence = sorted(_sorted(earlier), key=lambda at: turns.get(at, 0))
  count: dict[Hashable, int] = {}
  ended: set[Hashable] = set()
  last: dict[str, Hashable] = {}
  label: dict[int, Hashable] = {}
  for at in sequence:
    if at < 0:
      continue
    key = part[at]
    is_next = not turns or last.get(key[0], key) == key
    waits = any(is_apart(b, at) for b in earlier[at])
    if waits or key in ended or not is_next:
      count[key] = count.get(key, 0) + 1
      ended.discard(key)
    last[key[0]] = key
    label[at] = key, count.get(key, 0)
    if at in sends:
      ended.add(key)
  return [label.get(at) for at in vertex]


def _before(op: tf.Operation) -> list[tf.Operation]:
  return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def _sorted(before: Mapping[int, Iterable[int]]) -> list[int]:
  """Returns nodes after their predecessors, else by number."""
  sorter = graphlib.TopologicalSorter(before)
  sorter.prepare()
  ready: list[int] = []
  result = []
  while sorter.is_active():
    for node in sorter.get_ready():
      heapq.heappush(ready, node)
    result.append(heapq.heappop(ready))
    sorter.done(result[-1])
  return result


def _is_inlined(op: tf.Operation) -> bool:
  sizes = [(t.shape.num_elements() or 0) * t.dtype.size for t in op.outputs]
  return forming.is_inlined(op.type, sum(sizes), len(op.control_inputs))
