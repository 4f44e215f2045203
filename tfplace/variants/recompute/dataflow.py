"""Dataflow of a graph under construction: forward ops and gradients."""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfplace.extraction.nodes import predecessors
from tfplace.graph.op_names import GRADIENT_SCOPE
from tfplace.graph.paths import reached

_SEED = ("Const", "Fill", "OnesLike")  # Types of the loss's own gradient.
_SHAPE_ONLY = frozenset(("Shape", "ShapeN", "Size", "Rank"))
_NEVER_CLONED = frozenset(("Const", "NoOp", "Placeholder"))


def tensor_bytes(tensor: tf.Tensor) -> float:
  """Returns the size of a tensor; an unknown dimension counts as 1,024.

  A tensor of unknown rank has no finite size.
  """
  if tensor.dtype in (tf.variant, tf.resource) or tensor.shape.rank is None:
    return float("inf")
  dims = [1024 if d is None else d for d in tensor.shape.as_list()]
  size = 0 if tensor.dtype == tf.string else tensor.dtype.size
  return float(np.prod(dims, dtype=float) * size)


class Dataflow:
  """Ops of a graph by position, in order of creation.

  Attributes:
    ops: all ops.
    index: position by op name.
    first_backward: position of the first op of the backward pass, or the number
      of ops.
    readers: positions of the ops that read an output of each op, or wait for
      it. The clones of a segment are one further node.
  """

  def __init__(self, graph: Any) -> None:
    """Takes a `FuncGraph` at the end of its trace."""
    self.ops: list[tf.Operation] = graph.get_operations()
    self.index = {op.name: i for i, op in enumerate(self.ops)}
    self.first_backward = next(
      (i for i, op in enumerate(self.ops) if GRADIENT_SCOPE in op.name),
      len(self.ops),
    )
    self.readers: list[set[int]] = [set() for _ in self.ops]
    for i, op in enumerate(self.ops):
      for before in predecessors(op):
        self.readers[self.index[before.name]].add(i)

  def add_node(
    self, names: Iterable[str], before: Iterable[int], after: set[int]
  ) -> None:
    """Adds new ops of the graph as one node between others."""
    node = len(self.readers)
    self.readers.append(set(after))
    for position in before:
      self.readers[position].add(node)
    self.index.update(dict.fromkeys(names, node))

  def producer(self, tensor: tf.Tensor) -> int:
    return self.index[tensor.op.name]

  def consumers(self, tensor: tf.Tensor) -> list[int]:
    return [self.index[op.name] for op in tensor.consumers()]

  def can_clone(self, position: int) -> bool:
    """Returns whether a forward op can run twice with the same result."""
    op = self.ops[position]
    return (
      position < self.first_backward
      and not op.op_def.is_stateful
      and op.type not in _NEVER_CLONED
      and bool(op.inputs)
      and all(t.dtype != tf.resource for t in (*op.inputs, *op.outputs))
    )

  def reads_backward(self, tensor: tf.Tensor) -> list[int]:
    """Returns the ops of the backward pass that need the values of a tensor."""
    return [
      i
      for i in self.consumers(tensor)
      if i in self._backward and self.ops[i].type not in _SHAPE_ONLY
    ]

  def reachable(self, starts: Iterable[int], least: int = 0) -> set[int]:
    """Returns the ops from position `least` on that depend on the starts."""

    def after(positions: Iterable[int]) -> set[int]:
      readers = (self.readers[position] for position in positions)
      return {r for r in set().union(*readers) if r >= least}

    return set(reached(after(starts), lambda position: after([position])))

  @functools.cached_property
  def _backward(self) -> set[int]:
    """Ops that compute gradients or what gradients need; no metrics."""
    needed = set(self.gradients)
    for i in reversed(range(self.first_backward, len(self.ops))):
      if not needed.isdisjoint(self.readers[i]):
        needed.add(i)
    return needed

  @functools.cached_property
  def gradients(self) -> set[int]:
    """Positions of the ops that depend on the gradient of the loss."""
    seed = self.first_backward - 1
    is_seed = seed >= 0 and self.ops[seed].type in _SEED
    if is_seed and not any(r < seed for r in self.readers[seed]):
      return self.reachable([seed])
    return set(range(self.first_backward, len(self.ops)))
