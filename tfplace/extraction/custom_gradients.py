"""Releases the graphs of finished traces despite their custom gradients.

TensorFlow registers each `tf.custom_gradient` forever, and with it the graph
and the model's weights.
"""

import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import trackable_view
from tensorflow.python.framework import ops

from tfplace.graph.paths import reached

_PREFIX = "CustomGradient-"
_KEPT = "_tfplace_custom_gradients"  # attribute of a graph
_TYPE = "type"  # key of the function in an entry of TensorFlow's registry


@contextlib.contextmanager
def released_with_graphs() -> Iterator[None]:
  """Ties custom gradients traced in this context to their graphs' lifetime.

  A gradient can still be computed later, because its graph is then alive. Can
  also be used as a decorator.
  """
  entries = ops.gradient_registry._registry
  before = set(entries)
  try:
    yield
  finally:
    for name in entries.keys() - before:
      if name.startswith(_PREFIX):
        _release_with_graph(entries, name)


@contextlib.contextmanager
def released_after_use(loaded: Any) -> Iterator[None]:
  """Unregisters the gradients of a loaded SavedModel on exit.

  No gradient of `loaded` may be computed afterwards. Gradients that capture
  none of its variables hold little memory and stay registered.
  """
  try:
    yield
  finally:
    parts = trackable_view.TrackableView(loaded).descendants()
    handles = {id(v.handle) for v in parts if isinstance(v, tf.Variable)}
    entries = ops.gradient_registry._registry
    for name in [n for n in entries if n.startswith(_PREFIX)]:
      function = _enclosed(entries[name][_TYPE]).get("func")
      captured = getattr(function, "captured_inputs", ())
      if not handles.isdisjoint(_held(captured)):
        del entries[name]


def _held(tensors: Iterable[Any]) -> set[int]:
  """Collects the `id` of each eager tensor, following captures of graphs."""
  given = list(tensors)

  def outer(graph: Any) -> list[Any]:
    return [tensor for tensor, _ in getattr(graph, "captures", ())]

  def graphs(tensors: Iterable[Any]) -> list[Any]:
    return [t.graph for t in tensors if hasattr(t, "graph")]  # not eager ones

  for graph in reached(graphs(given), lambda graph: graphs(outer(graph))):
    given += outer(graph)
  return {id(tensor) for tensor in given if not hasattr(tensor, "graph")}


def _release_with_graph(entries: dict[str, Any], name: str) -> None:
  function = entries[name][_TYPE]
  graph = _graph_of(function)
  if graph is None:
    return
  setattr(graph, _KEPT, (*getattr(graph, _KEPT, ()), function))
  entries[name] = {**entries[name], _TYPE: _weak(function, name)}
  removal = weakref.finalize(graph, entries.pop, name, None)
  removal.atexit = False


def _weak(function: Callable[..., Any], name: str) -> Callable[..., Any]:
  reference = weakref.ref(function)

  def gradient(op: tf.Operation, *gradients: tf.Tensor) -> Any:
    known = reference()
    if known is None:
      raise LookupError(f"{name!r}: the graph of this gradient is gone")
    return known(op, *gradients)

  return gradient


def _graph_of(function: Callable[..., Any]) -> Any:
  """Finds the graph of a gradient's tensors; None for an unfamiliar closure."""
  result = _enclosed(_enclosed(function).get("tape_grad_fn")).get("result")
  for tensor in tf.nest.flatten(result, expand_composites=True):
    if isinstance(tensor, tf.Tensor) and hasattr(tensor, "graph"):
      return tensor.graph
  return None


def _enclosed(function: Any) -> Mapping[str, Any]:
  if not inspect.isfunction(function):
    return {}
  return inspect.getclosurevars(function).nonlocals
