"""Which Keras layer each op of a traced step belongs to, and fresh layer names.

Layers are recorded while the step is traced, since names alone do not tell: the
second call of layer "dense" and the first of layer "dense_1" both have the
scope "dense_1". Keras numbers what it names itself ("conv2d_94") through a
whole process; `fresh_names` counts from the start, so that a placement or a
cached graph of one build of a model fits the next.
"""

import collections
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

Layers = tuple[str, ...]
_GRADIENT_SCOPE = "gradient_tape/"


class LayerRecorder:
  """A device function that only looks: which layers are being called."""

  def __init__(self, graph: tf.Graph, model: keras.Model) -> None:
    """Records ops of `graph` itself, in layers of `model`, it included."""
    self._known = {layer.name for layer in model._flatten_layers()}
    self.layers: dict[str, Layers] = {}  # by name of an op or a scope
    self._graph = graph

  def __call__(self, op: tf.Operation) -> str:
    """What `tf.Graph.device` asks for each new op: its device, unchanged."""
    if op.graph is self._graph:
      # Losses and optimizers open scopes, too.
      names = tuple(name for name in open_layers() if name in self._known)
      if names:
        self.layers[op.name] = names
        self.layers.setdefault(op.name.rpartition("/")[0], names)
    return op.device

  def of_nodes(
    self, graph_def: tf.compat.v1.GraphDef, variables: Mapping[str, Layers]
  ) -> dict[str, Layers]:
    """Node -> its layers, gradients and bodies of calls included.

    Args:
      graph_def: the recorded graph, flat by now.
      variables: name of a variable's node -> its layers.
    """
    found = dict(variables)
    for node in graph_def.node:
      for name in _candidates(node.name):
        if name in self.layers:
          found.setdefault(node.name, self.layers[name])
          break
    return found


def _candidates(name: str) -> Iterator[str]:
  """The op itself, what it is the gradient of, and the scopes around."""
  forward = name.rpartition(_GRADIENT_SCOPE)[2]
  while forward:
    yield forward
    forward = forward.rpartition("/")[0]


def of_variables(model: keras.Model) -> dict[str, Layers]:
  """Path of each variable of a layer -> that layer and those around it."""
  found: dict[str, Layers] = {}

  def visit(layer: Any, around: Layers) -> None:
    names = (layer.name, *around)
    for variable in layer.variables:
      found[variable.path] = names
    for child in layer._layers:
      visit(child, names)

  visit(model, ())
  return found


_COUNTERS = "object_name_uids"


def open_layers() -> list[str]:
  """Names of the layers whose call is being traced, innermost first."""
  from keras.src.backend.common import global_state

  stack = global_state.get_global_attribute("name_scope_stack") or []
  return [entry.name for entry in reversed(stack)]


@contextlib.contextmanager
def fresh_names() -> Iterator[None]:
  """Counts Keras' names from the start inside, and goes on outside."""
  try:
    from keras.src.backend.common import global_state
  except ImportError:  # a Keras that keeps them elsewhere
    yield
    return
  kept = global_state.get_global_attribute(_COUNTERS)
  counters: dict[str, int] = collections.defaultdict(int)
  global_state.set_global_attribute(_COUNTERS, counters)
  try:
    yield
  finally:
    global_state.set_global_attribute(_COUNTERS, kept)
