"""Inlines the function calls of a GraphDef, exactly and without dropping ops.

A call becomes the nodes of its body, as in TensorFlow's inliner; a `While`
stays one op; an `If` becomes `Switch` and `Merge` as in `lower_if_op.cc`, and a
simulated step counts both branches.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib
from tfplace.extraction.function_body import FunctionBody
from tfplace.extraction.nodes import NodeDef
from tfplace.extraction.safety import limits

CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
CONDITIONS = frozenset(("If", "StatelessIf"))
_SWITCHES = frozenset(("Switch", "RefSwitch", "_SwitchN"))
_BRANCHES = ("else_branch", "then_branch")  # indexed by the output of a Switch
_LOWERED = "_lower_using_switch_merge"


@dataclasses.dataclass(frozen=True)
class Inlined:
  """A flat graph, and a map from the original graph to it.

  Attributes:
    graph_def: the flat graph; its library holds the functions still in use.
    moved: input string -> input string, for outputs of inlined calls ("call",
      "call:1") and for their control outputs ("^call").
    origins: node of a function body -> its path: the call's node, the attribute
      that names the function ("" if the op itself does), a node of that
      function, and so on. Absent for nodes of the original graph and for nodes
      that join bodies.
  """

  graph_def: tf.compat.v1.GraphDef
  moved: Mapping[str, str]
  origins: Mapping[str, tuple[str, ...]]

  def tensor(self, name: str) -> str:
    """Maps a tensor of the original graph to its full name ("node:0") here."""
    short = _follow(self.moved, node_lib.canonical(name))
    node, output = node_lib.split_tensor(short)
    return f"{node}:{output}"

  def node(self, name: str) -> str:
    """Returns the flat node that ends when the original node would end."""
    return _follow(self.moved, "^" + name)[1:]


def inline_functions(graph_def: tf.compat.v1.GraphDef) -> Inlined:
  """Inlines every call, including calls inside function bodies.

  Raises:
    ExtractionError: a function is missing, is recursive or is called with the
      wrong number of inputs, or the result exceeds the limits of `limits`.
  """
  limits.check_calls(graph_def)
  inliner = _Inliner(graph_def)
  nodes: Sequence[NodeDef] = graph_def.node
  expanded = True
  while expanded:  # terminates, since no function calls itself
    nodes, expanded = inliner.expand(nodes)
  result = tf.compat.v1.GraphDef(versions=graph_def.versions)
  result.node.extend(nodes)
  result.library.function.extend(
    node_lib.reached_functions(nodes, inliner.functions)
  )
  return Inlined(result, inliner.moved, inliner.origins)


class _Inliner:
  """State of an inlining: the library, used names, and moved outputs."""

  def __init__(self, graph_def: tf.compat.v1.GraphDef) -> None:
    self.functions = node_lib.functions_of(graph_def)
    self.used = {node.name for node in graph_def.node}
    self.moved: dict[str, str] = {}
    self.origins: dict[str, tuple[str, ...]] = {}
    self.conditional = False  # whether a tensor may be dead

  def expand(self, nodes: Sequence[NodeDef]) -> tuple[list[NodeDef], bool]:
    index = {node.name: node for node in nodes}
    self.conditional = any(node.op in _SWITCHES for node in nodes)
    result: list[NodeDef] = []
    expanded = False
    for node in nodes:
      expansion = self._expand(node, index)
      result.extend([node] if expansion is None else expansion)
      expanded = expanded or expansion is not None
    if expanded:
      for node in result:
        self._rewire(node)
    return result, expanded

  def _expand(
    self, node: NodeDef, index: Mapping[str, NodeDef]
  ) -> list[NodeDef] | None:
    if node.op in self.functions:
      return self._call(node, "", _data(node))
    if node.op in CALLS:
      return self._call(node, "f", _data(node))
    if node.op not in CONDITIONS or not _data(node):
      return None
    predicate, *inputs = _data(node)
    taken = _constant_predicate(predicate, index)
    if taken is not None:
      return self._call(node, _BRANCHES[taken], inputs)
    if _LOWERED in node.attr and node.attr[_LOWERED].b:
      return self._lower(node, predicate, inputs)
    return None

  def _call(
    self, node: NodeDef, attribute: str, inputs: Sequence[str]
  ) -> list[NodeDef]:
    body = self._body(node, attribute, inputs)
    nodes = body.instantiate(
      inputs, _controls(node), conditional=self.conditional
    )
    for i, tensor in enumerate(body.outputs):
      self.moved[node_lib.join_tensor(node.name, i)] = tensor
    self.moved["^" + node.name] = "^" + body.done
    return nodes

  def _body(
    self,
    node: NodeDef,
    attribute: str,
    inputs: Sequence[str],
    scope: str | None = None,
  ) -> FunctionBody:
    called: Any = node.attr[attribute].func if attribute else node
    name = called.name if attribute else node.op
    if name not in self.functions:
      raise ExtractionError(
        f"node {node.name!r} calls function {name!r}, which the library lacks",
        op=node.name,
      )
    function = self.functions[name]
    wanted = len(function.signature.input_arg)
    if len(inputs) != wanted:
      raise ExtractionError(
        f"node {node.name!r} calls function {name!r} with {len(inputs)} inputs"
        f" instead of {wanted}",
        op=node.name,
      )
    body = FunctionBody(
      node,
      function,
      called.attr,
      functions=self.functions,
      used=self.used,
      name=scope,
    )
    path = (*self.origins.get(node.name, (node.name,)), attribute)
    for inner, flat in body.names.items():
      self.origins[flat] = (*path, inner)
    return body

  def _lower(
    self, node: NodeDef, predicate: str, inputs: Sequence[str]
  ) -> list[NodeDef]:
    nodes: list[NodeDef] = []

    def add(op: str, name: str, sources: Sequence[str], dtype: int) -> str:
      unique = node_lib.unique_name(f"{node.name}/{name}", self.used)
      self.used.add(unique)
      made = NodeDef(name=unique, op=op, input=sources, device=node.device)
      made.attr["T"].type = dtype
      if op == "Merge":
        made.attr["N"].i = len(_BRANCHES)
      nodes.append(made)
      return unique

    boolean, controls = tf.bool.as_datatype_enum, _controls(node)
    pivot = add("Switch", "pivot", [predicate, predicate, *controls], boolean)
    pivots = [
      add("Identity", f"pivot_{at}", [node_lib.join_tensor(pivot, i)], boolean)
      for i, at in enumerate("ft")
    ]
    types = node.attr["Tin"].list.type
    switches = [
      add("Switch", f"switch_{i}", [tensor, predicate, *controls], dtype)
      for i, (tensor, dtype) in enumerate(zip(inputs, types, strict=True))
    ]
    bodies = []
    for i, branch in enumerate(_BRANCHES):
      sources = [node_lib.join_tensor(switch, i) for switch in switches]
      scope = f"{node.name}/{branch.removesuffix('_branch')}"
      bodies.append(self._body(node, branch, sources, scope))
      nodes += bodies[-1].instantiate(sources, ["^" + pivots[i]], gated=True)
    for i, dtype in enumerate(node.attr["Tout"].list.type):
      ends = [body.outputs[i] for body in bodies]
      merge = add("Merge", f"merge_{i}", ends, dtype)
      self.moved[node_lib.join_tensor(node.name, i)] = merge
    done = [
      add("Identity", f"{at}_done", [pivot, "^" + body.done], boolean)
      for at, pivot, body in zip("ft", pivots, bodies, strict=True)
    ]
    self.moved["^" + node.name] = "^" + add("Merge", "done", done, boolean)
    return nodes

  def _rewire(self, node: NodeDef) -> None:
    inputs = [_follow(self.moved, node_lib.canonical(i)) for i in node.input]
    if inputs != list(node.input):
      del node.input[:]
      node.input.extend(node_lib.controls_last(inputs))


def _data(node: NodeDef) -> list[str]:
  return [text for text in node.input if not text.startswith("^")]


def _controls(node: NodeDef) -> list[str]:
  return [text for text in node.input if text.startswith("^")]


def _follow(moved: Mapping[str, str], name: str) -> str:
  while name in moved:
    name = moved[name]
  return name


def _constant_predicate(
  tensor: str, index: Mapping[str, NodeDef]
) -> bool | None:
  node = index.get(node_lib.split_tensor(tensor)[0])
  while node is not None and node.op == "Identity" and node.input:
    node = index.get(node_lib.split_tensor(node.input[0])[0])
  if node is None or node.op != "Const":
    return None
  value = tensor_util.MakeNdarray(node.attr["value"].tensor)
  # TensorFlow's rule: a scalar predicate counts by its value, any other by
  # being non-empty.
  return bool(value) if value.ndim == 0 else value.size > 0
