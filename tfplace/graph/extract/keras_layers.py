"""Which Keras layer each op of a traced step belongs to.

Seen while the step is traced, since names alone do not tell: the second call
of layer "dense" and the first of layer "dense_1" both have the scope
"dense_1".
"""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfplace.graph.extract.keras_names import open_layers

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
