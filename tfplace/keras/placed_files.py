"""Export of placements to graphs and files that run without tfplace.

`placed_graph_def` returns a traced step with a device on every node. A placed
SavedModel is a copy with new device fields in the functions and variables of
one signature. A function with several callers is copied if its callers need
different placements. An op that runs a whole function, such as a loop, has one
device for everything inside it.
"""

import collections
import copy
import os
import shutil
from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.saved_model import fingerprinting_utils

from tfplace.errors import ApplyError
from tfplace.extraction import structure
from tfplace.extraction.functions import FlatSignature, flatten_signature
from tfplace.extraction.safety import safe_loading
from tfplace.extraction.traced import TracedStep
from tfplace.formats import files
from tfplace.graph.order import ARRIVAL
from tfplace.graph.placement import Placement
from tfplace.simulate.control_edges import enforce_order
from tfplace.variants.units.steps import in_units

# Alternates node names with the attributes that name the called functions.
NodePath: TypeAlias = tuple[str, ...]
_COMPILED = "_XlaMustCompile"
_FINGERPRINT = "fingerprint.pb"
_HANDLE = "VarHandleOp"


def placed_graph_def(
  traced: TracedStep, placement: Placement
) -> tf.compat.v1.GraphDef:
  """Returns a copy of the traced graph with the planned device on every node.

  Units that XLA compiles are calls of functions. If the order is by rank,
  control edges chain the ops of each device.

  Args:
    traced: the step that `placement`'s graph was extracted from.
    placement: placement with a device for each node of the step.

  Raises:
    ApplyError: a node has no device, or the placement names other ops.
  """
  result = _with_devices(
    in_units(traced, placement.problem.graph), placement.assignments
  )
  if placement.problem.order != ARRIVAL:
    enforce_order(result, placement)
  return result


def _with_devices(
  traced: TracedStep, assignments: Mapping[str, str]
) -> tf.compat.v1.GraphDef:
  result = copy.deepcopy(traced.graph_def)
  for node in result.node:
    if node.name not in assignments:
      raise ApplyError(
        f"node {node.name!r} ({node.op}) of {traced.name!r} is not in the"
        " placement",
        op=node.name,
      )
    node.device = assignments[node.name]
  if len(assignments) > len(result.node):
    nodes = {node.name for node in result.node}
    name = next(name for name in assignments if name not in nodes)
    raise ApplyError(
      f"the placement names op {name!r}, which {traced.name!r} does not have",
      op=name,
    )
  return result


def write_placed_graph_def(
  traced: TracedStep,
  placement: Placement,
  path: str | os.PathLike[str],
) -> None:
  """Writes the placed graph, as text to `.pbtxt` files and else as binary.

  The write is atomic; an interrupted write keeps the old file.

  Raises:
    ApplyError: `placed_graph_def` fails, or the graph exceeds the 2 GiB limit
      of a binary GraphDef.
    FormatError: the file cannot be written.
  """
  graph_def = placed_graph_def(traced, placement)
  if os.fspath(path).endswith(".pbtxt"):
    data = text_format.MessageToString(graph_def).encode()
  else:
    if graph_def.ByteSize() >= 2**31:
      raise ApplyError(
        f"{os.fspath(path)!r}: a GraphDef of {graph_def.ByteSize()} bytes"
        " exceeds the limit of 2 GiB of the format"
      )
    data = graph_def.SerializeToString()
  files.write_bytes(path, data)


def write_placed_saved_model(
  source: str | os.PathLike[str],
  placement: Placement,
  output: str | os.PathLike[str],
  *,
  batch_size: int | None = None,
  signature: str | None = None,
  allow_side_effects: bool = False,
) -> None:
  """Writes a placed copy of a SavedModel.

  `tf.saved_model.load` and TensorFlow Serving load it without tfplace.
  Variables are on their planned devices if the loader honors variable devices:
  Serving does, and `tf.saved_model.load` does with
  `experimental_variable_policy="save_variable_devices"`. Otherwise the
  variables and the ops that read them are on the first device.

  Args:
    source: directory of the SavedModel.
    placement: placement of the signature's ops, by the names that
      `flatten_signature` gives them.
    output: new directory. It is created completely or not at all.
    batch_size: batch size of the placement, see `flatten_signature`.
    signature: key of the signature to place. None selects "serving_default" or
      the only signature. Other signatures keep working.
    allow_side_effects: see `flatten_signature`.

  Raises:
    ExtractionError: the SavedModel cannot be read.
    ApplyError: the placement is of another graph or has order "rank", it would
      divide a function that XLA compiles, or `output` exists or cannot be
      written.
  """
  _check_output(output)
  if placement.problem.order != ARRIVAL:
    raise ApplyError(
      f"{os.fspath(output)!r}: the placement has order"
      f" {placement.problem.order!r}, and the functions of a SavedModel cannot"
      " enforce an order; plan with order 'arrival'"
    )
  flat = flatten_signature(source, batch_size, signature, allow_side_effects)
  placed = _with_devices(flat.traced, placement.traced_assignments)
  content = safe_loading.read(os.fspath(source))
  _place(content.meta_graphs[0], flat, placed)
  _write(source, output, content)


def _check_output(output: str | os.PathLike[str]) -> None:
  """Raises `ApplyError` if `output` exists or cannot be created."""
  path = os.path.abspath(output)
  if os.path.lexists(path):
    raise ApplyError(f"{os.fspath(output)!r} already exists")
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
  """Returns the ops on resources that the loader places, such as tables."""
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


def _function_of(objects: Any, key: str) -> str:
  """Returns the name of the function of a signature."""
  node = objects.nodes[0]
  for name in ("signatures", key):
    child = next(c for c in node.children if c.local_name == name)
    node = objects.nodes[child.node_id]
  return str(node.bare_concrete_function.concrete_function_name)


def _place_handles(
  meta_graph: Any, key: str, devices: list[str | None]
) -> None:
  """Places the variable nodes of the graph that C++ loaders use."""
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
  """Copies the directory with a new graph and renames the complete copy."""
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


class FunctionPlacer:
  """Placer of the functions of one library; modifies the library in place."""

  def __init__(self, library: Any) -> None:
    """Takes the `FunctionDefLibrary`, to which copies are added."""
    self._library = library
    self._placed: dict[Any, str] = {}
    self._free = {f.signature.name: f for f in library.function}
    self._originals: dict[str, Any] = copy.deepcopy(self._free)
    self._used = set(self._originals)

  def place(self, name: str, devices: Mapping[NodePath, str]) -> str:
    """Places a function and all functions that it calls.

    Args:
      name: name of the function.
      devices: full device name by node path, relative to the function.

    Returns:
      The name of the placed function. The first placement of a function keeps
      its name; every further placement creates a copy.

    Raises:
      ApplyError: the placement would divide a function that XLA compiles.
    """
    key = name, frozenset(devices.items())
    if key not in self._placed:
      self._check(name, devices)
      function = self._instance(name)
      self._placed[key] = function.signature.name
      self._place_nodes(function, devices)
    return self._placed[key]

  def _place_nodes(
    self, function: Any, devices: Mapping[NodePath, str]
  ) -> None:
    below: dict[str, dict[str, dict[NodePath, str]]] = {}
    for path, device in devices.items():
      if len(path) > 1:
        calls = below.setdefault(path[0], collections.defaultdict(dict))
        calls[path[1]][path[2:]] = device
    for node in function.node_def:
      planned = devices.get((node.name,))
      if planned is not None:
        node.device = planned
        self._fill_called(node, planned)
      for attribute, inner in below.get(node.name, {}).items():
        if not attribute:
          node.op = self.place(node.op, inner)
        else:
          called = node.attr[attribute].func
          called.name = self.place(called.name, inner)

  def _fill_called(self, node: Any, device: str) -> None:
    """Places the functions that an op such as `While` runs on its device."""
    for value in node.attr.values():
      called = [value.func] if value.HasField("func") else value.list.func
      for function in called:
        if function.name in self._originals:
          nodes = self._originals[function.name].node_def
          inner: dict[NodePath, str] = {(n.name,): device for n in nodes}
          function.name = self.place(function.name, inner)

  def _instance(self, name: str) -> Any:
    """Returns the function on the first call, then copies of the original."""
    if name in self._free:
      return self._free.pop(name)
    function = self._library.function.add()
    function.CopyFrom(self._originals[name])
    number = 1
    while f"{name}_placed_{number}" in self._used:
      number += 1
    function.signature.name = f"{name}_placed_{number}"
    self._used.add(function.signature.name)
    return function

  def _check(self, name: str, devices: Mapping[NodePath, str]) -> None:
    attributes = self._originals[name].attr
    used = sorted(set(devices.values()))
    if _COMPILED in attributes and attributes[_COMPILED].b and len(used) > 1:
      raise ApplyError(
        f"function {name!r} is compiled by XLA as a whole, and cannot be"
        f" divided among {', '.join(used)}; save the model without"
        " jit_compile",
        device=used[1],
      )
