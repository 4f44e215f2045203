"""Which ops of a SavedModel can read nothing but the SavedModel's own files.

The loader gives a file's name to a graph in two ways: TensorFlow 1's binds a
tensor of the flat graph (the saver's file name, an asset), TensorFlow 2's an
argument of a function (an asset that it captured). An op that reads the file
that such a tensor names reads a file of the model, wherever the model lies.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import tensorflow as tf

from tfplace.extraction import nodes as node_names
from tfplace.extraction import nodes as op_defs

Call: TypeAlias = tuple[str | None, op_defs.NodeDef, int]

_TABLE = re.compile(r"InitializeTableFromTextFile(V2)?")
_RESTORE = re.compile(r"Restore(V2|Slice)?")
_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_BRANCHES = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
_CHECKPOINT, _ASSET = "checkpoint", "asset"


class OwnFiles:
  """Judges the ops of one MetaGraph.

  Args of the constructor:
    graph_def: its graph; its calls are not recursive.
    named: node of the flat graph -> "checkpoint" or "asset": what the loader
      binds to its output. It must have no value of its own.
    captured: function that can be called by itself -> its last inputs: whether
      the loader binds an asset to each.
  """

  def __init__(
    self,
    graph_def: tf.compat.v1.GraphDef,
    named: Mapping[str, str],
    captured: Mapping[str, list[bool]],
  ) -> None:
    functions = graph_def.library.function
    self._functions = {f.signature.name: f for f in functions}
    self._named = named
    self._captured = captured
    self._bodies: dict[str | None, Any] = {None: graph_def.node}
    self._bodies.update({n: f.node_def for n, f in self._functions.items()})
    self._arguments = {
      name: {a.name: i for i, a in enumerate(f.signature.input_arg)}
      for name, f in self._functions.items()
    }
    self._index: dict[str | None, dict[str, op_defs.NodeDef]] = {}
    self._calls: dict[str, list[Call]] | None = None
    self._known: dict[tuple[str, int, str], bool] = {}

  def reads_own_file(self, node: op_defs.NodeDef, function: str | None) -> bool:
    """Whether the node reads a file, and that can only be the model's."""
    if _RESTORE.fullmatch(node.op):
      return bool(node.input) and self._is(function, node.input[0], _CHECKPOINT)
    if _TABLE.fullmatch(node.op) and len(node.input) > 1:
      return self._is(function, node.input[1], _ASSET)
    return False

  def _is(self, function: str | None, text: str, kind: str) -> bool:
    """Whether a tensor of a function always names a file of that kind."""
    nodes = self._nodes(function)
    if len(nodes) != len(self._bodies[function]):
      return False  # two of one name
    name, output = node_names.split_tensor(text)
    node = nodes.get(name.partition(":")[0])
    for _ in nodes:
      if node is None or node.op != "Identity" or not node.input:
        break
      name, output = node_names.split_tensor(node.input[0])
      node = nodes.get(name.partition(":")[0])
    if output != 0:
      return False
    if function is None:
      return self._named.get(name) == kind
    if node is not None or name not in self._arguments[function]:
      return False
    key = (function, self._arguments[function][name], kind)
    if key not in self._known:
      self._known[key] = self._is_argument(*key)
    return self._known[key]

  def _is_argument(self, function: str, number: int, kind: str) -> bool:
    arguments = self._functions[function].signature.input_arg
    if len(arguments) != len(self._arguments[function]):
      return False  # two of one name
    if function in self._captured:
      bound = self._captured[function]
      first = len(arguments) - len(bound)
      if number < first or not bound[number - first] or kind != _ASSET:
        return False
    return all(
      offset >= 0
      and len(node.input) > number + offset
      and self._is(caller, node.input[number + offset], kind)
      for caller, node, offset in self._calls_of(function)
    )

  def _nodes(self, function: str | None) -> dict[str, op_defs.NodeDef]:
    if function not in self._index:
      nodes = {node.name: node for node in self._bodies[function]}
      self._index[function] = nodes
    return self._index[function]

  def _calls_of(self, function: str) -> list[Call]:
    """Caller, node, and place of the first argument among its inputs."""
    if self._calls is None:
      self._calls = {}
      for caller, body in self._bodies.items():
        for node in body:
          for name, offset in _called(node, self._functions):
            self._calls.setdefault(name, []).append((caller, node, offset))
    return self._calls.get(function, [])


def _called(
  node: op_defs.NodeDef, functions: Mapping[str, Any]
) -> Iterator[tuple[str, int]]:
  """Functions that a node calls, and where its inputs for them begin.

  -1 stands for inputs that are not simply passed on.
  """
  if node.op in functions:
    yield node.op, 0
  for name in op_defs.function_names(node):
    yield name, 0 if node.op in _CALLS else 1 if node.op in _BRANCHES else -1
