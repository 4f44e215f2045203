"""Maps each op of a step to its Keras layers.

Recorded during tracing, because op names are ambiguous; the graph tells the
rest.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from tfplace.extraction import nodes as node_lib
from tfplace.graph.microbatches import TEMPLATE, name_in_whole, name_of_relayed
from tfplace.graph.op_names import GRADIENT_SCOPE, with_scopes
from tfplace.graph.recompute import original_name

Layers = tuple[str, ...]
_PASS_ON = frozenset(("Identity", "Switch", "Enter"))


class LayerRecorder:
  """Device function that records open layers and changes no device."""

  def __init__(self, graph: tf.Graph, model: keras.Model) -> None:
    self._known = {layer.name for layer in model._flatten_layers()}
    self.layers: dict[str, Layers] = {}  # by name of an op or a scope
    self._graph = graph

  def __call__(self, op: tf.Operation) -> str:
    if op.graph is self._graph or op.graph.name == TEMPLATE:
      # Losses and optimizers open scopes, too.
      names = tuple(name for name in open_layers() if name in self._known)
      if names:
        self.layers[op.name] = names
        self.layers.setdefault(op.name.rpartition("/")[0], names)
    return op.device

  def of_op(self, name: str) -> Layers:
    """Returns the layers of an op, a gradient or a clone, innermost first."""
    forward = original_name(name).rpartition(GRADIENT_SCOPE)[2]
    recorded = (self.layers.get(scope) for scope in with_scopes(forward))
    return next(filter(None, recorded), ())

  def of_nodes(
    self, graph_def: tf.compat.v1.GraphDef, variables: Mapping[str, Layers]
  ) -> dict[str, Layers]:
    """Maps nodes of a flat graph to their layers, innermost first.

    Gradients, inlined function bodies and updates are included. `variables`
    maps the node of each variable to its layers.
    """
    known = dict(variables)
    for node in graph_def.node:
      layers = self.of_op(name_of_relayed(name_in_whole(node.name)))
      if layers:
        known.setdefault(node.name, layers)
    return with_updates(graph_def, known)


def layers_of_variables(model: keras.Model) -> dict[str, Layers]:
  """Maps the path of each layer variable to the layer and those around it."""
  layers_of: dict[str, Layers] = {}

  def visit(layer: Any, around: Layers) -> None:
    names = (layer.name, *around)
    for variable in layer.variables:
      layers_of[variable.path] = names
    for child in layer._layers:
      visit(child, names)

  visit(model, ())
  return layers_of


def open_layers() -> list[str]:
  """Lists the layers whose call is being traced, innermost first."""
  stack = global_state.get_global_attribute("name_scope_stack") or []
  return [entry.name for entry in reversed(stack)]


def with_updates(
  graph_def: tf.compat.v1.GraphDef, layers: Mapping[str, Layers]
) -> dict[str, Layers]:
  """Adds the ops that serve a single layer, following the edges of the graph.

  These are the updates of its variables (addition, clipping and scaling of
  gradients, the optimizer's slots and its arithmetic), and the sums of
  gradients that its own gradients read. Ops that several layers share get no
  layer: the learning rate, the global gradient norm, the loss.

  Args:
    layers: layers, innermost first, of each variable and each recorded node.
  """
  nodes = node_lib.producers_first(graph_def)
  sources = _sources(nodes)
  inferred: dict[str, Layers] = {}
  count = -1
  while len(inferred) > count:  # a known slot makes its update known
    count = len(inferred)
    held = _handles(nodes, sources, {**inferred, **layers})
    inferred = _walk_back(nodes, sources, layers, held)
  return {**inferred, **layers}


def _sources(nodes: Sequence[node_lib.NodeDef]) -> dict[str, list[str]]:
  """Maps each node to the nodes that it reads, looking through `IdentityN`."""
  sources: dict[str, list[str]] = {}
  passed: dict[tuple[str, int], str] = {}
  for node in nodes:
    tensors = map(node_lib.split_tensor, node.input)
    read = [passed.get(t, t[0]) for t in tensors if t[1] >= 0]
    sources[node.name] = read
    if node.op == "IdentityN":
      passed.update({(node.name, i): source for i, source in enumerate(read)})
  return sources


def _handles(
  nodes: Sequence[node_lib.NodeDef],
  sources: Mapping[str, Sequence[str]],
  layers: Mapping[str, Layers],
) -> dict[str, Layers]:
  handles: dict[str, Layers] = {}
  for node in nodes:
    if node.op == "VarHandleOp" and node.name in layers:
      handles[node.name] = layers[node.name]
    elif node.op in _PASS_ON and sources[node.name][0] in handles:
      handles[node.name] = handles[sources[node.name][0]]
  return handles


def _walk_back(
  nodes: Sequence[node_lib.NodeDef],
  sources: Mapping[str, Sequence[str]],
  given: Mapping[str, Layers],
  handles: Mapping[str, Layers],
) -> dict[str, Layers]:
  """Finds the layers of updates and sums, visiting readers before sources."""
  updating: dict[str, set[Layers]] = collections.defaultdict(set)
  needing: dict[str, set[Layers]] = collections.defaultdict(set)
  inferred: dict[str, Layers] = {}
  for node in reversed(nodes):
    name, is_gradient = node.name, GRADIENT_SCOPE in node.name
    if name in given:
      for source in sources[name] if is_gradient else ():
        needing[source].add(given[name])
      continue
    layers = {handles[s] for s in sources[name] if s in handles}
    layers = layers or updating[name]
    if len(layers) == 1:
      (inferred[name],) = layers
      # The inputs of a gradient are not part of an update.
      for source in () if is_gradient else sources[name]:
        updating[source].add(inferred[name])
    elif node.op == "AddN" and not layers and len(needing[name]) == 1:
      (inferred[name],) = needing[name]
  return inferred
