"""Safe loading of untrusted SavedModels, confined to the model's own files.

`tf.saved_model.load` runs the functions that create, initialize, restore and
destroy resources. First, everything that the loader never runs is removed: the
flat graph and functions that no object has. Every remaining op must have no
side effects (`side_effects`) or read an asset inside the model's folder, under
the name that the loader binds to its argument. Finally, the model is loaded
from a temporary folder with the checked graph and copies of the assets, so the
loaded files are the checked ones. Only the checkpoint, which is plain data, is
a link.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfplace.errors import ExtractionError
from tfplace.extraction import validate
from tfplace.extraction.safety import (
  limits,
  saved_model_parts,
  side_effects,
)
from tfplace.formats.files import check_temporary_folder

FILES = ("saved_model.pb", "saved_model.pbtxt")


def load(path: str) -> Any:
  """Loads the model.

  Raises:
    ExtractionError: the folder is not a SavedModel, is damaged or of TensorFlow
      1, or loading would have side effects.
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
  if not meta_graph.HasField("object_graph_def"):
    raise ExtractionError(
      f"{where} is of TensorFlow 1, whose loader runs its whole graph;"
      " --allow_side_effects (in Python, allow_side_effects=True) loads it all"
      " the same"
    )
  saved_model_parts.keep_objects(meta_graph)
  assets = _assets(path, meta_graph)
  captured = _captured_assets(meta_graph.object_graph_def)
  files = saved_model_parts.OwnFiles(meta_graph.graph_def, captured)
  side_effects.refuse(
    side_effects.first(
      meta_graph.graph_def,
      lambda node, function: (
        side_effects.reaches_out(node)
        and not files.reads_own_file(node, function)
      ),
    ),
    where,
  )
  check_temporary_folder()
  with tempfile.TemporaryDirectory(prefix="tfplace-") as folder:
    try:
      _write(path, folder, content, assets)
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
  """Reads the main file of a SavedModel, or raises ExtractionError."""
  files = [os.path.join(path, name) for name in FILES]
  found = [file for file in files if os.path.isfile(file)]
  if not found:
    raise ExtractionError(
      f"{path!r} is no SavedModel: it has neither {FILES[0]} nor {FILES[1]}"
    )
  content = saved_model_pb2.SavedModel()
  limits.read_proto(found[0], content, limits.SAVED_MODEL)
  return content


def _captured_assets(objects: Any) -> dict[str, list[bool]]:
  """Maps functions of objects to whether each captured tensor is an asset."""
  assets = [
    node.WhichOneof("kind") == "asset" and not node.registered_name
    for node in objects.nodes
  ]
  captured: dict[str, list[bool]] = {
    name: [] for name in saved_model_parts.objects_functions(objects)
  }
  for name, function in objects.concrete_functions.items():
    captured[name] = [
      0 <= i < len(assets) and assets[i] for i in function.bound_inputs
    ]
  return captured


def _assets(path: str, meta_graph: Any) -> dict[str, str]:
  """Maps asset names to files; rejects files outside the model's folder."""
  root = os.path.realpath(path)
  result = {}
  for asset in meta_graph.asset_file_def:
    name = asset.filename.replace("\0", "?")  # no file name has a null byte
    file = os.path.realpath(os.path.join(root, "assets", name))
    is_plain = os.path.normpath(name) == name and not os.path.isabs(name)
    if not is_plain or os.path.commonpath((root, file)) != root:
      raise ExtractionError(
        f"SavedModel {path!r}: asset {name[:80]!a} lies outside of the model's"
        f" folder; --allow_side_effects (in Python, allow_side_effects=True)"
        " reads it all the same"
      )
    if os.path.isfile(file):
      result[name] = file
  total = sum(map(os.path.getsize, result.values()))
  if total > limits.MAX_BYTES:
    raise ExtractionError(
      f"SavedModel {path!r} has assets of {total} bytes; at most"
      f" {limits.MAX_BYTES} are accepted",
      num_bytes=total,
    )
  return result


def _write(
  path: str, folder: str, content: Any, assets: Mapping[str, str]
) -> None:
  with open(os.path.join(folder, FILES[0]), "wb") as file:
    file.write(content.SerializeToString())
  variables = os.path.realpath(os.path.join(path, "variables"))
  if os.path.isdir(variables):
    os.symlink(variables, os.path.join(folder, "variables"))
  for name, source in assets.items():
    target = os.path.join(folder, "assets", name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # The checked file was not a link, so a link here is an attack.
    source_file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    with open(source_file, "rb") as file, open(target, "wb") as copy:
      shutil.copyfileobj(file, copy)
