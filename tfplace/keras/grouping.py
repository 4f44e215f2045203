"""Which ops of a Keras model's step a plan keeps on one device.

An optimizer's slots are beside their variable, always: TensorFlow would let
them be anywhere, but every update reads both. The rest is what the user asks
for, by layer or by a pattern of names.
"""

import collections
import fnmatch
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import keras

from tfplace.core import constraints
from tfplace.core.op_graph import OpGraph
from tfplace.errors import ApplyError, FormatError
from tfplace.extraction import TracedStep
from tfplace.keras import state
from tfplace.plan.plan import choices

# A layer, a pattern, or several of them that share one device.
LayerGroup: TypeAlias = str | Sequence[str]


def check(groups: Iterable[LayerGroup]) -> tuple[tuple[str, ...], ...]:
  """The groups of `keep_together`, each as a tuple of names.

  Raises:
    ApplyError: something else than names.
  """
  if isinstance(groups, str):
    groups = (groups,)
  result = []
  for group in groups:
    names = group if isinstance(group, (list, tuple)) else (group,)
    if not names or not all(isinstance(name, str) for name in names):
      raise ApplyError(
        "keep_together takes names of layers, patterns, and lists of them, not"
        f" {group!r:.60}"
      )
    result.append(tuple(names))
  return tuple(result)


def grouped(
  graph: OpGraph,
  traced: TracedStep,
  model: keras.Model,
  keep_together: Iterable[Sequence[str]],
) -> OpGraph:
  """The graph with slots beside their variables and the user's groups.

  Raises:
    ApplyError: a name is no layer of the model and like no name in it.
  """
  groups = slot_groups(graph, model)
  for names in keep_together:
    groups.append([op for name in names for op in _ops(graph, traced, name)])
  return constraints.keep_together(graph, groups)


def slot_groups(graph: OpGraph, model: keras.Model) -> list[list[int]]:
  """Positions of each slot's handle and its variable's.

  Handles are found by path; of several variables of one path none is, and
  what applies the plan puts their slots beside them.
  """
  count = collections.Counter(v.path for v in state.variables(model))
  return [
    [graph.index[owner.path], graph.index[slot.path]]
    for slot, owner in state.slots(model)
    if all(p in graph.index and count[p] == 1 for p in (slot.path, owner.path))
  ]


def _ops(graph: OpGraph, traced: TracedStep, name: str) -> list[int]:
  """Ops of the layer of that name, of layers like it, or of ops like it."""
  known = {layer for layers in traced.layers.values() for layer in layers}
  wanted = {name} & known or set(fnmatch.filter(known, name))
  if not wanted:
    try:
      return constraints.matching(graph, name)
    except FormatError:
      raise ApplyError(
        f"keep_together names {name!r}, which is no layer of model"
        f" {traced.name!r} and like no op's name; {choices(name, known)}"
      ) from None
  return [
    op
    for op, node in enumerate(graph.names)
    if not wanted.isdisjoint(traced.layers.get(node, ()))
  ]
