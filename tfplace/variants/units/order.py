"""Order of a graph's ops, and which units of a device may be merged."""

import collections
from collections.abc import (
  Callable,
  Container,
  Hashable,
  Iterable,
  Mapping,
  Sequence,
  Set,
)
from typing import Any, TypeAlias

import tensorflow as tf

from tfplace.extraction.nodes import predecessors
from tfplace.graph.microbatches import microbatch_of
from tfplace.graph.paths import smallest_first
from tfplace.variants.units import forming

READ = "ReadVariableOp"
_Part: TypeAlias = tuple[str, int | None]  # Device and microbatch.


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
    before = [[index[other.name] for other in predecessors(op)] for op in ops]
    self.earlier: dict[str, list[str]] = {}
    after: dict[int, list[int]] = {}
    self.later = list(later)
    for one, other in self.later:
      before[other].append(one)
      after.setdefault(one, []).append(other)
      self.earlier.setdefault(ops[other].name, []).append(ops[one].name)
    order = smallest_first(dict(enumerate(before)))
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
      i: {number[o.name] for o in predecessors(op)} for i, op in enumerate(ops)
    }
    known = [number.get(call_of.get(op.name, op).name) for op in self.ops]
    pairs = [(a, b) for b, them in enumerate(self.before) for a in them]
    for first, second in (*pairs, *self.later):
      a, b = known[first], known[second]
      if a is not None and b is not None and a != b:
        before[b].add(a)
    return [ops[i] for i in smallest_first(before)]

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
  flow: Flow, unit_of: Sequence[int], turn_of: Callable[[str], int | None]
) -> list[Hashable | None]:
  """Returns a key of each op that units share which may be merged.

  A unit of the same device and microbatch is merged with those before it unless
  it waits for a transfer, or one of them sends a result. In turn, no unit of
  another microbatch is between them.

  Args:
    unit_of: unit of each op, or -1.
    turn_of: turn of an op by name, or None in order of arrival.
  """
  vertex = [at if at >= 0 else -1 - i for i, at in enumerate(unit_of)]
  part: dict[int, _Part] = {}
  before: dict[int, set[int]] = {}
  turns: dict[int, float] = {}
  for i in flow.order:
    op, at = flow.ops[i], vertex[i]
    part.setdefault(at, (op.device, microbatch_of(op.name)))
    before.setdefault(at, set()).update(vertex[j] for j in flow.before[i])
    before[at].discard(at)
    turn = turn_of(op.name)
    if turn is not None:
      turns[at] = min(turns.get(at, turn), turn)
  apart = {
    at: [other for other in earlier if _is_apart(part[other], part[at])]
    for at, earlier in before.items()
  }
  sends = {other for others in apart.values() for other in others}
  count: collections.Counter[_Part] = collections.Counter()
  ended: set[_Part] = set()
  last: dict[str, _Part] = {}
  label: dict[int, Hashable] = {}
  for at in sorted(smallest_first(before), key=lambda at: turns.get(at, 0)):
    if at < 0:
      continue
    key = part[at]
    is_next = not turns or last.get(key[0], key) == key
    if apart[at] or key in ended or not is_next:
      count[key] += 1
      ended.discard(key)
    last[key[0]] = key
    label[at] = key, count[key]
    if at in sends:
      ended.add(key)
  return [label.get(at) for at in vertex]


def _is_apart(one: _Part, other: _Part) -> bool:
  """Returns whether a transfer or another microbatch is in between."""
  is_sent = bool(one[0]) and bool(other[0]) and one[0] != other[0]
  return is_sent or (None not in (one[1], other[1]) and one[1] != other[1])


def _is_inlined(op: tf.Operation) -> bool:
  sizes = [(t.shape.num_elements() or 0) * t.dtype.size for t in op.outputs]
  return forming.is_inlined(op.type, sum(sizes), len(op.control_inputs))
