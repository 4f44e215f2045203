"""Loads a SavedModel of a stranger such that nothing of it reaches out.

`tf.saved_model.load` runs parts of what it loads: the restore op and the
initialisation of TensorFlow 1, and of TensorFlow 2 what creates, initialises,
restores and in the end destroys each resource. All that is the model's own
graph. So nothing there is excused by the name of its op:

- What the loader never runs is taken out: the flat graph of a model of
  TensorFlow 2 (its variables are restored without it), functions that no object
  has, and of TensorFlow 1 what saves and what follows from that.
- Every op that remains must keep to the step (`side_effects`), or read a file
  of the model's own: the checkpoint, under the file name that the loader gives
  to the saver's restore op, or an asset that lies inside the model's folder,
  under the name that the loader gives to the tensor or argument bound to it.
  The tensors of these names are made placeholders: who runs such an op without
  the loader gets an error, not a file.
- What was checked is what is loaded: from a folder of this process, which holds
  the graph as it was checked and copies of the assets. Only the checkpoint is a
  link; it is data.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tfplace.errors import ExtractionError
from tfplace.graph.extract import (
  call_tree,
  node_names,
  op_defs,
  own_files,
  proto_file,
  side_effects,
  validate,
)

FILES = ("saved_model.pb", "saved_model.pbtxt")
_SAVE = re.compile(r"Save(V2|Slices)?|MergeV2Checkpoints")
_NAMES = frozenset(("Const", "Placeholder", "PlaceholderWithDefault"))
_OLD_ASSETS = "saved_model_assets"  # where TensorFlow 1 writes them
_INIT_OPS = ("saved_model_main_op", "legacy_init_op")
# Refuses a model that is not allowed, given what the loader would run.
Check = Callable[[Any], None]


def load(path: str, check: Check | None = None) -> Any:
  """The loaded model.

  Args:
    path: of its folder.
    check: is asked first of the MetaGraph; of TensorFlow 2, as it would be
      loaded.

  Raises:
    ExtractionError: no SavedModel, damaged, or one whose loading would reach
      out; or `check`'s own.
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
    call_tree.check(meta_graph.graph_def)
  if meta_graph.HasField("object_graph_def"):
    _keep_objects(meta_graph)
  if check is not None:
    check(meta_graph)
  assets = _assets(path, meta_graph)
  files = _own_files(meta_graph, where)
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
  with tempfile.TemporaryDirectory(prefix="tfplace-") as folder:
    try:
      _write(path, folder, content, assets)
    except OSError as error:
      raise ExtractionError(f"{where} cannot be copied: {error}") from error
    del content  # TensorFlow parses it again
    return load_unchecked(folder, path)


def load_unchecked(folder: str, path: str) -> Any:
  """What TensorFlow loads from a folder, which errors call `path`.

  Raises:
    ExtractionError: TensorFlow cannot load it.
  """
  try:
    return tf.saved_model.load(folder)
  except Exception as error:
    text = (str(error).strip() or "no message").splitlines()[0]
    raise ExtractionError(
      f"SavedModel {path!r} cannot be loaded: {type(error).__name__}:"
      f" {text.replace(folder, path)}"
    ) from error


def read(path: str) -> saved_model_pb2.SavedModel:
  """The content of a SavedModel's main file.

  Raises:
    ExtractionError: there is none, or it cannot be read.
  """
  files = [os.path.join(path, name) for name in FILES]
  found = [file for file in files if os.path.isfile(file)]
  if not found:
    raise ExtractionError(
      f"{path!r} is no SavedModel: it has neither {FILES[0]} nor {FILES[1]}"
    )
  content = saved_model_pb2.SavedModel()
  proto_file.read(found[0], content, proto_file.SAVED_MODEL)
  return content


def _own_files(meta_graph: Any, where: str) -> own_files.OwnFiles:
  """Says which of its files a model can read; takes out what saves."""
  graph_def = meta_graph.graph_def
  if meta_graph.HasField("object_graph_def"):
    captured = _captured_assets(meta_graph.object_graph_def)
    return own_files.OwnFiles(graph_def, {}, captured)
  _cut_saving(meta_graph, where)
  return own_files.OwnFiles(graph_def, _unbind(meta_graph), {})


def _captured_assets(objects: Any) -> dict[str, list[bool]]:
  """Function -> for each tensor that it captures, whether it is an asset."""
  size = len(objects.nodes)
  return {
    name: [
      0 <= i < size and objects.nodes[i].WhichOneof("kind") == "asset"
      for i in function.bound_inputs
    ]
    for name, function in objects.concrete_functions.items()
  }


def _keep_objects(meta_graph: Any) -> None:
  """Keeps what the objects of TensorFlow 2 have: functions and constants."""
  graph_def = meta_graph.graph_def
  objects = meta_graph.object_graph_def
  constants = {node.constant.operation for node in objects.nodes}
  kept = [
    node
    for node in graph_def.node
    if node.op == "Const" and node.name in constants
  ]
  del graph_def.node[:]
  graph_def.node.extend(kept)
  gradients = graph_def.library.registered_gradients
  roots = {*objects.concrete_functions, *(g.gradient_func for g in gradients)}
  _keep_functions(graph_def, roots)


def _keep_functions(graph_def: Any, roots: set[str]) -> None:
  """Drops the functions that neither `roots` nor the flat graph reach."""
  library = graph_def.library
  functions = {f.signature.name: f for f in library.function}
  calls = [op_defs.NodeDef(op=name) for name in roots]
  found = op_defs.reached_functions([*graph_def.node, *calls], functions)
  kept = {f.signature.name for f in found}
  gradients = [g for g in library.gradient if g.function_name in kept]
  more = {g.gradient_func for g in gradients} - kept
  if more:
    _keep_functions(graph_def, roots | more)
    return
  del library.function[:], library.gradient[:]
  library.function.extend(f for n, f in functions.items() if n in kept)
  library.gradient.extend(gradients)


def _cut_saving(meta_graph: Any, where: str) -> None:
  """Cuts what saves, and what follows from it, out of a flat graph.

  Raises:
    ExtractionError: the loader or a signature needs it.
  """
  graph_def = meta_graph.graph_def
  functions = {f.signature.name: f for f in graph_def.library.function}
  saving = [node for node in graph_def.node if _saves(node, functions)]
  needed = {node_names.split_tensor(t)[0] for t in _tensors(meta_graph)}
  gone = _with_consumers(graph_def, {node.name for node in saving})
  if needed & gone:
    blamed = [
      n for n in saving if needed & _with_consumers(graph_def, {n.name})
    ]
    found = side_effects.first(
      tf.compat.v1.GraphDef(node=blamed), lambda *_: True
    )
    side_effects.refuse(found, where)
  kept = [node for node in graph_def.node if node.name not in gone]
  del graph_def.node[:]
  graph_def.node.extend(kept)
  gradients = graph_def.library.registered_gradients
  _keep_functions(graph_def, {g.gradient_func for g in gradients})


def _with_consumers(graph_def: Any, names: set[str]) -> set[str]:
  """The nodes of these names, and all that follows from them."""
  result, before = set(names), 0
  while len(result) > before:
    before = len(result)
    for node in graph_def.node:
      if any(node_names.split_tensor(i)[0] in result for i in node.input):
        result.add(node.name)
  return result


def _saves(node: op_defs.NodeDef, functions: Mapping[str, Any]) -> bool:
  """Whether the node saves, or calls what does."""
  called = op_defs.reached_functions([node], functions)
  nodes = [node, *(n for function in called for n in function.node_def)]
  return any(_SAVE.fullmatch(n.op) for n in nodes)


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


def _unbind(meta_graph: Any) -> dict[str, str]:
  """Node -> kind of file that it names; these lose their own values."""
  saver = node_names.split_tensor(meta_graph.saver_def.filename_tensor_name)[0]
  named = {saver: "checkpoint"} if saver else {}
  for asset in _asset_protos(meta_graph):
    named[node_names.split_tensor(asset.tensor_info.name)[0]] = "asset"
  nodes = node_names.by_name(meta_graph.graph_def)
  result = {}
  for name, kind in named.items():
    node = nodes.get(name)
    if node is None or node.op not in _NAMES:
      continue
    result[name] = kind
    device = node.device
    node.Clear()
    node.name, node.op, node.device = name, "Placeholder", device
    node.attr["dtype"].type = tf.string.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape([]).as_proto())
  return result


def _asset_protos(meta_graph: Any) -> list[Any]:
  if meta_graph.asset_file_def:
    return list(meta_graph.asset_file_def)
  result = []
  if _OLD_ASSETS in meta_graph.collection_def:
    for packed in meta_graph.collection_def[_OLD_ASSETS].any_list.value:
      result.append(meta_graph_pb2.AssetFileDef())
      packed.Unpack(result[-1])
  return result


def _assets(path: str, meta_graph: Any) -> dict[str, str]:
  """Name of each asset, below the folder of assets -> its file.

  Raises:
    ExtractionError: it lies outside of the model's folder.
  """
  root = os.path.realpath(path)
  result = {}
  for asset in _asset_protos(meta_graph):
    name = asset.filename.replace("\0", "?")  # no file's name has one
    file = os.path.realpath(os.path.join(root, "assets", name))
    is_plain = not os.path.isabs(name) and ".." not in name.split("/")
    if not is_plain or os.path.commonpath((root, file)) != root:
      raise ExtractionError(
        f"SavedModel {path!r}: asset {name[:80]!a} lies outside of the model's"
        f" folder; --allow_side_effects (in Python, allow_side_effects=True)"
        " reads it all the same"
      )
    if os.path.isfile(file):
      result[name] = file
  return result


def _write(
  path: str, folder: str, content: Any, assets: Mapping[str, str]
) -> None:
  """Writes the model that is to be loaded into a folder of this process."""
  with open(os.path.join(folder, FILES[0]), "wb") as file:
    file.write(content.SerializeToString())
  variables = os.path.realpath(os.path.join(path, "variables"))
  if os.path.isdir(variables):
    os.symlink(variables, os.path.join(folder, "variables"))
  for name, source in assets.items():
    target = os.path.join(folder, "assets", name)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    # No link, for none was there when it was checked.
    source_file = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    with open(source_file, "rb") as file, open(target, "wb") as copy:
      shutil.copyfileobj(file, copy)
