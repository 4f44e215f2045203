"""Colocation groups of layers, ops and optimizer slots."""

import collections
import fnmatch
from collections.abc import Iterable, Sequence

import keras

from tfplace.errors import ApplyError, FormatError
from tfplace.extraction.traced import TracedStep
from tfplace.graph import graph_edits
from tfplace.graph.op_graph import OpGraph
from tfplace.keras import state


def grouped(
  graph: OpGraph,
  traced: TracedStep,
  model: keras.Model,
  keep_together: Iterable[Sequence[str]],
) -> OpGraph:
  """Adds the groups of optimizer slots and of the user to a graph.

  Raises:
    ApplyError: a name matches no layer and no op of the model.
  """
  groups = _slot_groups(graph, model)
  for names in keep_together:
    groups.append([op for name in names for op in _ops(graph, traced, name)])
  return graph_edits.keep_together(graph, groups)


def _slot_groups(graph: OpGraph, model: keras.Model) -> list[list[int]]:
  """Returns the positions of the handles of slots and variables, by path.

  Variables with the same path are omitted; the controller places their slots.
  """
  count = collections.Counter(v.path for v in state.variables(model))
  return [
    [graph.index[owner.path], graph.index[slot.path]]
    for slot, owner in state.slots(model)
    if all(p in graph.index and count[p] == 1 for p in (slot.path, owner.path))
  ]


def _ops(graph: OpGraph, traced: TracedStep, name: str) -> list[int]:
  """Returns the ops of a named layer, of matching layers, or matching ops."""
  known = {layer for layers in traced.layers.values() for layer in layers}
  wanted = {name} & known or set(fnmatch.filter(known, name))
  if not wanted:
    try:
      return graph_edits.matching(graph, name)
    except FormatError:
      similar = state.similar_names(name, known)
      raise ApplyError(
        f"keep_together names {name!r}, which is no layer of model"
        f" {traced.name!r} and like no op's name; {similar}"
      ) from None
  return [
    op
    for op, node in enumerate(graph.names)
    if not wanted.isdisjoint(
      traced.layers.get(graph.members.get(node, (node,))[0], ())
    )
  ]
