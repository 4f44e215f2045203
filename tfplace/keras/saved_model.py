"""A SavedModel with a placement in it: it serves so wherever it is loaded.

Only the graph is rewritten: device fields of the nodes of a signature's
functions, and of its variables. Variables' values, assets and everything else
are copied as they are.
"""

import os
import shutil
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import fingerprinting_utils

from tfplace.core.placement import Placement
from tfplace.errors import ApplyError
from tfplace.extraction import structure
from tfplace.extraction.functions import FlatSignature, flatten_signature
from tfplace.extraction.safety import safe_loading
from tfplace.formats import files
from tfplace.keras.graph_def import FunctionPlacer, placed_graph_def

_FINGERPRINT = "fingerprint.pb"
_HANDLE = "VarHandleOp"


def write_placed_saved_model(
  source: str | os.PathLike[str],
  placement: Placement,
  output: str | os.PathLike[str],
  batch_size: int | None = None,
  signature: str | None = None,
  allow_side_effects: bool = False,
) -> None:
  """Writes a copy of a SavedModel that runs as placed.

  `tf.saved_model.load` and TensorFlow Serving need no tfplace to load it. The
  variables lie on their planned devices where the loader honours them: Serving
  does, and `tf.saved_model.load` with `experimental_variable_policy=
  "save_variable_devices"`; else they lie on the first device, and what reads
  them runs there.

  Args:
    source: directory of the SavedModel.
    placement: of the ops of the signature, as `trace_saved_model` names them.
    output: directory that is not there yet; it appears whole or not at all.
    batch_size: that the placement was made for, as for `trace_saved_model`.
    signature: key of the placed signature; "serving_default", or the only
      one, by default. The others go on working.
    allow_side_effects: as for `trace_saved_model`.

  Raises:
    ExtractionError: the SavedModel cannot be read.
    ApplyError: the placement is of another graph, XLA compiles what would be
      divided, `output` is there, or it cannot be written.
  """
  check_output(output)
  flat = flatten_signature(source, batch_size, signature, allow_side_effects)
  placed = placed_graph_def(flat.traced, placement)
  content = read(source)
  _place(content.meta_graphs[0], flat, placed)
  _write(source, output, content)


def read(source: str | os.PathLike[str]) -> saved_model_pb2.SavedModel:
  """The content of a SavedModel's main file.

  Raises:
    ExtractionError: it cannot be read.
  """
  return safe_loading.read(os.fspath(source))


def check_output(output: str | os.PathLike[str]) -> None:
  """Raises `ApplyError` where something is there or nothing can be."""
  path = os.path.abspath(output)
  if os.path.lexists(path):
    raise ApplyError(f"{os.fspath(output)!r} is there already")
  if not os.path.isdir(os.path.dirname(path)):
    raise ApplyError(
      f"{os.fspath(output)!r}: there is no directory {os.path.dirname(path)!r}"
    )


def _place(
  meta_graph: Any, flat: FlatSignature, placed: tf.compat.v1.GraphDef
) -> None:
  """Writes the devices of `placed` into the SavedModel's graph."""
  devices = {node.name: node.device for node in placed.node}
  for name in _beside_tables(placed):
    del devices[name]
  arguments = {
    node.name for node in placed.node if node.op in ("Placeholder", _HANDLE)
  }
  paths = {
    path: devices[node]
    for node, path in flat.origins.items()
    if node in devices and node not in arguments
  }
  objects = meta_graph.object_graph_def
  if not objects.nodes:  # of TensorFlow 1: one flat graph
    handles = {tuple([name]): devices[name] for name in flat.captures}
    _place_nodes(meta_graph.graph_def, {**paths, **handles})
    return
  function = _function_of(objects, flat.key)
  placer = FunctionPlacer(meta_graph.graph_def.library)
  placer.place(function, paths)
  inputs = objects.concrete_functions[function].bound_inputs
  where = {inputs[i]: devices[node] for node, i in flat.captures.items()}
  for number, device in where.items():
    if objects.nodes[number].HasField("variable"):
      objects.nodes[number].variable.device = device
  _place_handles(meta_graph, flat.key, [where.get(i) for i in inputs])


def _beside_tables(graph_def: tf.compat.v1.GraphDef) -> list[str]:
  """Ops on a table or the like, which stays where the loader puts it."""
  groups = structure.colocation_groups(graph_def)
  resource = tf.resource.as_datatype_enum
  outside = {
    group
    for node, group in zip(graph_def.node, groups, strict=True)
    if node.op == "Placeholder" and node.attr["dtype"].type == resource
  }
  return [
    node.name
    for node, group in zip(graph_def.node, groups, strict=True)
    if group is not None and group in outside
  ]


def _place_nodes(
  graph_def: tf.compat.v1.GraphDef, paths: Mapping[tuple[str, ...], str]
) -> None:
  """Places the graph of TensorFlow 1.

  Raises:
    ApplyError: a node is not there.
  """
  nodes = {node.name: node for node in graph_def.node}
  for path, device in paths.items():
    # A node named like an output has had a number put to its name since.
    name = path[0] if path[0] in nodes else path[0].rpartition("_")[0]
    if len(path) > 1 or name not in nodes:
      raise ApplyError(
        f"the SavedModel's graph has no node {'/'.join(path)!r}, which is to be"
        f" on {device}",
        op=path[0],
        device=device,
      )
    nodes[name].device = device


def _function_of(objects: Any, key: str) -> str:
  """Name of the function of a signature."""
  node = objects.nodes[0]
  for name in ("signatures", key):
    child = next(c for c in node.children if c.local_name == name)
    node = objects.nodes[child.node_id]
  return str(node.bare_concrete_function.concrete_function_name)


def _place_handles(
  meta_graph: Any, key: str, devices: list[str | None]
) -> None:
  """Places the variables' nodes in the graph that C++ loaders use."""
  outputs = meta_graph.signature_def[key].outputs.values()
  calls = {tensor.name.split(":")[0] for tensor in outputs}
  nodes = {node.name: node for node in meta_graph.graph_def.node}
  for call in calls & set(nodes):
    inputs = [i for i in nodes[call].input if not i.startswith("^")]
    if len(inputs) < len(devices):
      continue
    captured = inputs[len(inputs) - len(devices) :]
    for name, device in zip(captured, devices, strict=True):
      node = nodes[name.split(":")[0]]
      if device is not None and node.op == _HANDLE:
        node.device = device


def _write(
  source: str | os.PathLike[str],
  output: str | os.PathLike[str],
  content: Any,
) -> None:
  """Copies the directory with another graph, under its name when complete."""
  target = os.path.abspath(output)
  try:
    with files.new_folder(os.path.dirname(target)) as made:
      ignored = shutil.ignore_patterns(*safe_loading.FILES, _FINGERPRINT)
      shutil.copytree(source, made, ignore=ignored, dirs_exist_ok=True)
      with open(os.path.join(made, safe_loading.FILES[0]), "wb") as file:
        file.write(content.SerializeToString(deterministic=True))
        file.flush()
        os.fsync(file.fileno())
      fingerprinting_utils.write_fingerprint(made)
      os.rename(made, target)
  except (OSError, ValueError) as error:
    raise ApplyError(
      f"{os.fspath(output)!r} cannot be written:"
      f" {(str(error) or type(error).__name__).splitlines()[0]}"
    ) from error
