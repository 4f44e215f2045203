"""Safe loading of untrusted SavedModels.

`tf.saved_model.load` runs the functions that create, initialize, restore and
destroy resources. It restores the variables through the model's objects,
without the flat graph, and never saves. First, everything that it never runs is
removed: the flat graph and functions that no object has. No remaining op may
have side effects (`side_effects`). Finally, the model is loaded from a
temporary folder with the checked graph and a link to the checkpoint, which is
plain data.
"""

import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes, validate
from tfplace.extraction.safety import limits, side_effects
from tfplace.formats.files import check_temporary_folder
from tfplace.graph.paths import reached

FILES = ("saved_model.pb", "saved_model.pbtxt")


def load(path: str) -> Any:
  """Loads the model.

  Raises:
    ExtractionError: `read` fails, the folder has several graphs, or loading
      would have side effects.
  """
  content = read(path)
  where = f"SavedModel {path!r}"
  if len(content.meta_graphs) != 1:
    raise ExtractionError(
      f"{where} has {len(content.meta_graphs)} MetaGraphs; one is loaded only"
      " where there is one"
    )
  meta_graph = content.meta_graphs[0]
  with validate.located(where):
    limits.check_calls(meta_graph.graph_def)
  _keep_objects(meta_graph)
  side_effects.refuse(side_effects.when_run(meta_graph.graph_def), where)
  check_temporary_folder()
  with tempfile.TemporaryDirectory(prefix="tfplace-") as folder:
    try:
      _write(path, folder, content)
    except OSError as error:
      raise ExtractionError(f"{where} cannot be copied: {error}") from error
    del content  # frees memory, since TensorFlow parses it again
    return load_unchecked(folder, path)


def load_unchecked(folder: str, path: str) -> Any:
  """Loads a folder by TensorFlow, or raises an ExtractionError about `path`."""
  try:
    return tf.saved_model.load(folder)
  except Exception as error:
    text = (str(error).strip() or "no message").splitlines()[0]
    raise ExtractionError(
      f"SavedModel {path!r} cannot be loaded: {type(error).__name__}:"
      f" {text.replace(folder, path)}"
    ) from error


def read(path: str) -> saved_model_pb2.SavedModel:
  """Reads the main file of a SavedModel of TensorFlow 2.

  Raises:
    ExtractionError: the folder is no SavedModel, or is damaged or of TensorFlow
      1.
  """
  files = [os.path.join(path, name) for name in FILES]
  present = [file for file in files if os.path.isfile(file)]
  if not present:
    raise ExtractionError(
      f"{path!r} is no SavedModel: it has neither {FILES[0]} nor {FILES[1]}"
    )
  content = saved_model_pb2.SavedModel()
  limits.read_proto(present[0], content, limits.SAVED_MODEL)
  if not all(m.HasField("object_graph_def") for m in content.meta_graphs):
    raise ExtractionError(
      f"SavedModel {path!r} is of TensorFlow 1: load it there and write it with"
      " tf.saved_model.save of TensorFlow 2"
    )
  return content


def _keep_objects(meta_graph: Any) -> None:
  """Keeps only functions and constants that objects use."""
  graph_def = meta_graph.graph_def
  objects = meta_graph.object_graph_def
  constants = {node.constant.operation for node in objects.nodes} - {""}
  _keep(
    graph_def.node, lambda node: node.op == "Const" and node.name in constants
  )
  _keep_functions(graph_def, _objects_functions(objects))


def _objects_functions(objects: Any) -> set[str]:
  """Returns the names of the functions that objects own or capture from."""
  names = set(objects.concrete_functions)
  for node in objects.nodes:
    names.update(node.function.concrete_functions)
    names.add(node.bare_concrete_function.concrete_function_name)
    names.add(node.captured_tensor.concrete_function)
  return names


def _keep_functions(graph_def: Any, roots: Iterable[str]) -> None:
  """Drops functions not reached from `roots`, gradients or the flat graph."""
  library = graph_def.library
  start = [*roots, *(g.gradient_func for g in library.registered_gradients)]
  start += _called_by(graph_def.node)
  functions = nodes.functions_of(graph_def)  # drops duplicate names
  calls = {name: _called_by(f.node_def) for name, f in functions.items()}
  for gradient in library.gradient:
    calls.setdefault(gradient.function_name, []).append(gradient.gradient_func)
  kept = reached(start, lambda name: calls.get(name, ()))
  del library.function[:]
  library.function.extend(f for name, f in functions.items() if name in kept)
  _keep(library.gradient, lambda g: g.function_name in kept)


def _called_by(body: Iterable[nodes.NodeDef]) -> list[str]:
  return [name for node in body for name in nodes.called_functions(node)]


def _keep(items: Any, is_kept: Callable[[Any], bool]) -> None:
  kept = [item for item in items if is_kept(item)]
  del items[:]
  items.extend(kept)


def _write(path: str, folder: str, content: Any) -> None:
  with open(os.path.join(folder, FILES[0]), "wb") as file:
    file.write(content.SerializeToString())
  variables = os.path.realpath(os.path.join(path, "variables"))
  if os.path.isdir(variables):
    os.symlink(variables, os.path.join(folder, "variables"))
