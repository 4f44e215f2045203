"""Writes devices into GraphDefs: into flat graphs, and into function libraries.

`placed_graph_def` is for whoever runs graphs without tfplace: every node of a
traced step with its device. `FunctionPlacer` places the functions of a
SavedModel's library. A function that is called from several places may be
placed differently in each: then it is copied. What runs as one op, such as a
loop, has one device, and so has all inside it.
"""

import collections
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from google.protobuf import text_format

from tfplace.core.placement import Placement
from tfplace.errors import ApplyError
from tfplace.extraction.traced import TracedStep
from tfplace.formats.files import write_bytes

# From a node of a function, by the attribute that calls, to a node of another.
NodePath: TypeAlias = tuple[str, ...]
_COMPILED = "_XlaMustCompile"


class FunctionPlacer:
  """Places functions of one library, in place."""

  def __init__(self, library: Any) -> None:
    """Takes a `FunctionDefLibrary`; adds copies to it."""
    self._library = library
    self._placed: dict[Any, str] = {}
    self._originals: dict[str, Any] = {}
    for function in library.function:
      copy = type(function)()
      copy.CopyFrom(function)
      self._originals[function.signature.name] = copy
    self._used = set(self._originals)
    self._free = {f.signature.name: f for f in library.function}

  def place(self, name: str, devices: Mapping[NodePath, str]) -> str:
    """Places one function and all that it calls.

    Args:
      name: of the function.
      devices: path from the function -> full device name.

    Returns:
      The name of the placed function: the same for the first placement of a
      function, and a copy's for another one.

    Raises:
      ApplyError: the library lacks the function, or XLA compiles it as one
        and it would be divided.
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
    self._check_nodes(function, devices)
    for node in function.node_def:
      own = devices.get((node.name,))
      if own is not None:
        node.device = own
        self._fill_called(node, own)
      for attribute, inner in below.get(node.name, {}).items():
        if not attribute:
          node.op = self.place(node.op, inner)
        else:
          called = node.attr[attribute].func
          called.name = self.place(called.name, inner)

  def _fill_called(self, node: Any, device: str) -> None:
    """Puts all that an op such as `While` runs on its device."""
    for value in node.attr.values():
      called = [value.func] if value.HasField("func") else value.list.func
      for function in called:
        if function.name in self._originals:
          nodes = self._originals[function.name].node_def
          inner: dict[NodePath, str] = {(n.name,): device for n in nodes}
          function.name = self.place(function.name, inner)

  def _instance(self, name: str) -> Any:
    """The function itself the first time, then a copy of what it was."""
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
    if name not in self._originals:
      raise ApplyError(f"the graph calls function {name!r}, which it lacks")
    attributes = self._originals[name].attr
    used = sorted(set(devices.values()))
    if _COMPILED in attributes and attributes[_COMPILED].b and len(used) > 1:
      raise ApplyError(
        f"function {name!r} is compiled by XLA as a whole, and cannot be"
        f" divided among {', '.join(used)}; save the model without"
        " jit_compile",
        device=used[1],
      )

  def _check_nodes(
    self, function: Any, devices: Mapping[NodePath, str]
  ) -> None:
    names = {node.name for node in function.node_def}
    for path, device in devices.items():
      if path[0] not in names:
        raise ApplyError(
          f"function {function.signature.name!r} has no node {path[0]!r}, which"
          f" is to be on {device}",
          op=path[0],
          device=device,
        )


def placed_graph_def(
  traced: TracedStep, placement: Placement
) -> tf.compat.v1.GraphDef:
  """A copy of the traced graph, every node on its planned device.

  Args:
    traced: the step that `placement`'s graph was extracted from.
    placement: a device for each of its nodes.

  Raises:
    ApplyError: a node has no place, or the placement names other ops.
  """
  assignments = placement.assignments
  result = tf.compat.v1.GraphDef()
  result.CopyFrom(traced.graph_def)
  for node in result.node:
    if node.name not in assignments:
      raise ApplyError(
        f"node {node.name!r} ({node.op}) of {traced.name!r} is not in the"
        f" placement of graph {placement.problem.graph.name!r}",
        op=node.name,
      )
    node.device = assignments[node.name]
  if len(assignments) > len(result.node):
    nodes = {node.name for node in result.node}
    name = next(name for name in assignments if name not in nodes)
    raise ApplyError(
      f"the placement of graph {placement.problem.graph.name!r} names op"
      f" {name!r}, which {traced.name!r} does not have",
      op=name,
    )
  return result


def write_graph_def(
  graph_def: tf.compat.v1.GraphDef, path: str | os.PathLike[str]
) -> None:
  """Writes `.pbtxt` as text and any other name as binary.

  The file appears whole or not at all; an interrupted write leaves the old.

  Raises:
    ApplyError: more than the 2 GiB that a binary GraphDef holds.
    FormatError: the file cannot be written.
  """
  if os.fspath(path).endswith(".pbtxt"):
    data = text_format.MessageToString(graph_def).encode()
  else:
    if graph_def.ByteSize() >= 2**31:
      raise ApplyError(
        f"{os.fspath(path)!r}: a GraphDef of {graph_def.ByteSize()} bytes"
        " passes the 2 GiB of its format"
      )
    data = graph_def.SerializeToString()
  write_bytes(path, data)


def write_placed_graph_def(
  traced: TracedStep,
  placement: Placement,
  path: str | os.PathLike[str],
) -> None:
  """`placed_graph_def`, written by `write_graph_def`."""
  write_graph_def(placed_graph_def(traced, placement), path)
