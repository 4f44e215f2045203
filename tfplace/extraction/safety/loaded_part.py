"""What of a SavedModel its loader runs: the rest is taken out.

Nothing is lost by that: `tf.saved_model.load` restores the variables of a
model of TensorFlow 2 by its objects, without the flat graph in which it was
saved, and of TensorFlow 1 by the saver's restore op; neither ever saves.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfplace.extraction import nodes
from tfplace.extraction.safety import side_effects

_SAVE = re.compile(r"Save(V2|Slices)?|MergeV2Checkpoints")
_INIT_OPS = ("saved_model_main_op", "legacy_init_op")


def keep_objects(meta_graph: Any) -> None:
  """Keeps what the objects of TensorFlow 2 have: functions and constants."""
  graph_def = meta_graph.graph_def
  objects = meta_graph.object_graph_def
  constants = {node.constant.operation for node in objects.nodes} - {""}
  kept = [
    node
    for node in graph_def.node
    if node.op == "Const" and node.name in constants
  ]
  del graph_def.node[:]
  graph_def.node.extend(kept)
  _keep_functions(graph_def, objects_functions(objects))


def objects_functions(objects: Any) -> set[str]:
  """Names of the functions that objects have, or take something from."""
  names = set(objects.concrete_functions)
  for node in objects.nodes:
    names.update(node.function.concrete_functions)
    names.add(node.bare_concrete_function.concrete_function_name)
    names.add(node.captured_tensor.concrete_function)
  return names


def _keep_functions(graph_def: Any, roots: Iterable[str]) -> None:
  """Drops what neither `roots`, gradients nor the flat graph reach."""
  library = graph_def.library
  functions = {f.signature.name: f for f in library.function}
  gradient = {g.function_name: g.gradient_func for g in library.gradient}
  start = [*roots, *(g.gradient_func for g in library.registered_gradients)]
  for node in graph_def.node:
    start.extend(nodes.called_functions(node))
  calls = {
    name: [n for node in f.node_def for n in nodes.called_functions(node)]
    for name, f in functions.items()
  }
  for name, function in gradient.items():
    calls.setdefault(name, []).append(function)
  kept = _reached(start, calls)
  gradients = [g for g in library.gradient if g.function_name in kept]
  del library.function[:], library.gradient[:]
  library.function.extend(f for n, f in functions.items() if n in kept)
  library.gradient.extend(gradients)


def cut_saving(meta_graph: Any, where: str) -> None:
  """Cuts what saves, and what follows from it, out of a flat graph.

  Raises:
    ExtractionError: the loader or a signature needs it.
  """
  graph_def = meta_graph.graph_def
  saves = _saving_functions(graph_def.library.function)
  saving = {
    node.name: node
    for node in graph_def.node
    if _SAVE.fullmatch(node.op)
    or not saves.isdisjoint(nodes.called_functions(node))
  }
  producers = {
    node.name: [nodes.split_tensor(text)[0] for text in node.input]
    for node in graph_def.node
  }
  needed = _reached(
    (nodes.split_tensor(t)[0] for t in _tensors(meta_graph)), producers
  )
  for name, node in saving.items():
    if name in needed:
      found = side_effects.first(
        tf.compat.v1.GraphDef(node=[node]), lambda *_: True
      )
      side_effects.refuse(found, where)
  gone = _reached(saving, _reversed(producers))
  kept = [node for node in graph_def.node if node.name not in gone]
  del graph_def.node[:]
  graph_def.node.extend(kept)
  _keep_functions(graph_def, ())


def _saving_functions(functions: Iterable[Any]) -> set[str]:
  """Names of those that save, or call what does."""
  called: dict[str, list[str]] = {}
  saving = []
  for function in functions:
    name = function.signature.name
    called[name] = []
    for node in function.node_def:
      called[name].extend(nodes.called_functions(node))
      if _SAVE.fullmatch(node.op):
        saving.append(name)
  return _reached(saving, _reversed(called))


def _reversed(edges: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
  result: dict[str, list[str]] = {}
  for source, targets in edges.items():
    for target in targets:
      result.setdefault(target, []).append(source)
  return result


def _reached(
  start: Iterable[str], edges: Mapping[str, Iterable[str]]
) -> set[str]:
  """What can be reached from `start`, itself among it."""
  queue = list(start)
  reached = set(queue)
  for name in queue:  # grows while it is read
    for target in edges.get(name, ()):
      if target not in reached:
        reached.add(target)
        queue.append(target)
  return reached


def _tensors(meta_graph: Any) -> set[str]:
  """Names that the loader looks up in a flat graph."""
  names = {meta_graph.saver_def.restore_op_name.removeprefix("^")}
  for key in _INIT_OPS:
    if key in meta_graph.collection_def:
      names.update(meta_graph.collection_def[key].node_list.value)
  for signature in meta_graph.signature_def.values():
    for info in (*signature.inputs.values(), *signature.outputs.values()):
      names.update((info.name, info.coo_sparse.values_tensor_name))
      names.update(c.name for c in info.composite_tensor.components)
  return names
