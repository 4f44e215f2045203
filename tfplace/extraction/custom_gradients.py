"""Lets the graphs of finished traces go, in spite of their custom gradients.

Each `tf.custom_gradient` that is traced registers its gradient function with
TensorFlow forever. That function holds tensors, hence its graph, hence every
variable that the graph captured: the weights of the model. Keras' optimizers
trace one in each training step (`ReplicaContext.all_reduce`), and so do
activations such as `silu`. Loading a SavedModel registers those that it has.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import trackable_view
from tensorflow.python.framework import ops

_PREFIX = "CustomGradient-"
_KEPT = "_tfplace_custom_gradients"  # attribute of a graph
_TYPE = "type"  # of an entry of TensorFlow's registry: the function


@contextlib.contextmanager
def released_with_graphs() -> Iterator[None]:
  """Custom gradients traced inside live as long as the graphs they are of.

  A gradient that is still to be taken finds them: the graph that it is taken of
  is there. Works as a decorator, too.
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
  """At the end, the registered gradients of a loaded SavedModel are dropped.

  Those that capture none of its variables stay: they hold little.

  Args:
    loaded: of `tf.saved_model.load`; no gradient is taken of it afterwards.
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
  """`id` of each eager tensor that these are or that their graphs captured."""
  found: set[int] = set()
  seen: set[int] = set()
  waiting = list(tensors)
  while waiting:
    tensor = waiting.pop()
    graph = getattr(tensor, "graph", None)  # eager tensors have none
    if graph is None:
      found.add(id(tensor))
    elif id(graph) not in seen:
      seen.add(id(graph))
      waiting += [outer for outer, _ in getattr(graph, "captures", ())]
  return found


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
    found = reference()
    if found is None:
      raise LookupError(f"{name!r}: the graph of this gradient is gone")
    return found(op, *gradients)

  return gradient


def _graph_of(function: Callable[..., Any]) -> Any:
  """The graph whose tensors a gradient function of TensorFlow's is for.

  None where it is not built as `tf.custom_gradient` builds it.
  """
  inner = _enclosed(function).get("tape_grad_fn")
  result = _enclosed(inner).get("result") if inner is not None else None
  for tensor in tf.nest.flatten(result, expand_composites=True):
    if isinstance(tensor, tf.Tensor) and hasattr(tensor, "graph"):
      return tensor.graph
  return None


def _enclosed(function: Callable[..., Any]) -> dict[str, Any]:
  """The variables of a closure, by name."""
  code = getattr(function, "__code__", None)
  cells = getattr(function, "__closure__", None) or ()
  if code is None:
    return {}
  return {
    name: cell.cell_contents
    for name, cell in zip(code.co_freevars, cells, strict=True)
  }
