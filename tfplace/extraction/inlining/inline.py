"""Inlines function calls of a GraphDef, exactly and with nothing dropped.

A call becomes the nodes of its body under the call's name as a scope. Data
goes straight from producer to consumer; control edges keep their meaning: what
waited for the call waits for its control outputs, and what the call waited for
holds back the body. This is what TensorFlow's own inliner does at run time.
`While` stays one op, since a loop is no directed acyclic graph.

An `If` of constant predicate becomes its branch. Where TensorFlow itself would
lower another one, it becomes `Switch` and `Merge`, after the scheme of
TensorFlow's `lower_if_op.cc`: each input passes a `Switch` into one of the
branches, and the ops of the other are dead and do not run. Ops of a branch that
read no input wait for a pivot of their branch. A simulated step counts both
branches, which is an upper bound.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.extraction import nodes as node_lib
from tfplace.extraction.inlining import function_body
from tfplace.extraction.safety import limits

CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
CONDITIONS = frozenset(("If", "StatelessIf"))
_SWITCHES = frozenset(("Switch", "RefSwitch", "_SwitchN"))
_BRANCHES = ("else_branch", "then_branch")  # by output index of a Switch
_LOWERED = "_lower_using_switch_merge"

NodeDef: TypeAlias = tf.compat.v1.NodeDef


@dataclasses.dataclass(frozen=True)
class Inlined:
  """A flat graph and where the tensors and nodes of the old one went.

  Attributes:
    graph_def: the flat graph; its library holds what the rest still needs.
    moved: input string -> input string, for outputs of inlined calls
      ("call", "call:1") and for their control ("^call").
    origins: node of a body -> the path to it: the call's node, the attribute
      that names the function ("" where the op does), a node of that function,
      and so on. Absent for nodes of the old graph and for what joins bodies.
  """

  graph_def: tf.compat.v1.GraphDef
  moved: Mapping[str, str]
  origins: Mapping[str, tuple[str, ...]]

  def tensor(self, name: str) -> str:
    """The full name ("node:0") in the flat graph of a tensor of the old."""
    node, output = node_lib.split_tensor(
      _follow(self.moved, node_lib.canonical(name))
    )
    return f"{node}:{output}"

  def node(self, name: str) -> str:
    """The node of the flat graph that ends when the old graph's ended."""
    return _follow(self.moved, "^" + name)[1:]


def inline_functions(graph_def: tf.compat.v1.GraphDef) -> Inlined:
  """Inlines every call, also those inside bodies.

  Raises:
    ExtractionError: a function is missing, recursive, called with the wrong
      number of inputs, or the result is too large (`limits`).
  """
  state = _State({f.signature.name: f for f in graph_def.library.function})
  nodes: Sequence[NodeDef] = graph_def.node
  limits.check_calls(graph_def)
  state.used.update(node.name for node in nodes)
  found = True
  while found:  # ends, since no function calls itself
    nodes, found = state.expand(nodes)
  result = tf.compat.v1.GraphDef(versions=graph_def.versions)
  result.node.extend(nodes)
  result.library.function.extend(
    node_lib.reached_functions(nodes, state.functions)
  )
  return Inlined(result, state.moved, state.origins)


class _State:
  """The library, the names in use, and what has moved so far."""

  def __init__(self, functions: Mapping[str, node_lib.FunctionDef]) -> None:
    self.functions = functions
    self.used: set[str] = set()
    self.moved: dict[str, str] = {}
    self.origins: dict[str, tuple[str, ...]] = {}
    self.conditional = False  # whether a tensor may be dead

  def expand(self, nodes: Sequence[NodeDef]) -> tuple[list[NodeDef], bool]:
    """Inlines one level of calls; also says whether there was one."""
    index = {node.name: node for node in nodes}
    self.conditional = any(node.op in _SWITCHES for node in nodes)
    result: list[NodeDef] = []
    found = False
    for node in nodes:
      expansion = self._expand(node, index)
      result.extend([node] if expansion is None else expansion)
      found = found or expansion is not None
    if found:
      for node in result:
        self._rewire(node)
    return result, found

  def _expand(
    self, node: NodeDef, index: Mapping[str, NodeDef]
  ) -> list[NodeDef] | None:
    """The nodes that stand for a call; None if `node` is none."""
    data = [i for i in node.input if not i.startswith("^")]
    if node.op in self.functions:
      return self._call(node, node.op, node.attr, data, "")
    if node.op in CALLS:
      function = node.attr["f"].func
      return self._call(node, function.name, function.attr, data, "f")
    if node.op not in CONDITIONS or not data:
      return None
    taken = _constant_predicate(data[0], index)
    if taken is not None:
      branch = "then_branch" if taken else "else_branch"
      function = node.attr[branch].func
      return self._call(node, function.name, function.attr, data[1:], branch)
    if node.attr[_LOWERED].b if _LOWERED in node.attr else False:
      lowered = lower_if(node, self.functions, self.used)
      self.moved.update(lowered.moved)
      for branch, body in lowered.bodies.items():
        self._note_origins(node, branch, body)
      return list(lowered.nodes)
    return None

  def _call(
    self,
    node: NodeDef,
    name: str,
    attrs: Mapping[str, object],
    inputs: Sequence[str],
    attribute: str,
  ) -> list[NodeDef]:
    body = function_body.FunctionBody(
      node,
      function_body.find(node, name, len(inputs), self.functions),
      attrs,
      self.functions,
      self.used,
    )
    controls = [i for i in node.input if i.startswith("^")]
    nodes = body.instantiate(inputs, controls, conditional=self.conditional)
    for i, tensor in enumerate(body.outputs):
      self.moved[node_lib.join_tensor(node.name, i)] = tensor
    self.moved["^" + node.name] = "^" + body.done
    self._note_origins(node, attribute, body)
    return nodes

  def _note_origins(
    self, node: NodeDef, attribute: str, body: function_body.FunctionBody
  ) -> None:
    path = (*self.origins.get(node.name, (node.name,)), attribute)
    for inner, name in body.names.items():
      self.origins[name] = (*path, inner)

  def _rewire(self, node: NodeDef) -> None:
    inputs = [_follow(self.moved, node_lib.canonical(i)) for i in node.input]
    if inputs != list(node.input):
      del node.input[:]
      node.input.extend(node_lib.controls_last(inputs))


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
  # TensorFlow's rule: a scalar counts by its value, else by being non-empty.
  return bool(value) if value.ndim == 0 else value.size > 0


@dataclasses.dataclass(frozen=True)
class Lowered:
  """What stands for an `If`.

  Attributes:
    nodes: in no particular order; calls in the branches are not inlined yet.
    moved: input string of the `If` -> input string that replaces it.
    bodies: attribute that names a branch -> its body.
  """

  nodes: Sequence[NodeDef]
  moved: Mapping[str, str]
  bodies: Mapping[str, function_body.FunctionBody]


def lower_if(
  node: NodeDef,
  functions: Mapping[str, node_lib.FunctionDef],
  used: set[str],
) -> Lowered:
  """The nodes for one `If` or `StatelessIf`.

  Args:
    node: the op.
    functions: the library.
    used: node names in use; grows.

  Raises:
    ExtractionError: a branch is missing, or takes other inputs.
  """
  return _Lowering(node, functions, used).lower()


class _Lowering:
  """The state of one lowering."""

  def __init__(
    self,
    node: NodeDef,
    functions: Mapping[str, node_lib.FunctionDef],
    used: set[str],
  ) -> None:
    self.node = node
    self.functions = functions
    self.used = used
    self.nodes: list[NodeDef] = []

  def lower(self) -> Lowered:
    predicate, *inputs = [i for i in self.node.input if not i.startswith("^")]
    controls = [i for i in self.node.input if i.startswith("^")]
    boolean = tf.bool.as_datatype_enum
    pivot = self._add(
      "Switch", "pivot", [predicate, predicate, *controls], boolean
    )
    pivots = [
      self._add("Identity", f"pivot_{at}", [_output(pivot, i)], boolean)
      for i, at in enumerate("ft")
    ]
    types = self.node.attr["Tin"].list.type
    switches = [
      self._add("Switch", f"switch_{i}", [tensor, predicate, *controls], dtype)
      for i, (tensor, dtype) in enumerate(zip(inputs, types, strict=True))
    ]
    branches = [
      self._branch(i, [_output(s, i) for s in switches], pivots[i])
      for i in range(len(_BRANCHES))
    ]
    bodies = dict(zip(_BRANCHES, branches, strict=True))
    return Lowered(self.nodes, self._merge(branches, pivots), bodies)

  def _add(
    self, op: str, name: str, inputs: Sequence[str], dtype: int
  ) -> NodeDef:
    unique = node_lib.unique_name(f"{self.node.name}/{name}", self.used)
    self.used.add(unique)
    result = NodeDef(name=unique, op=op, input=inputs, device=self.node.device)
    result.attr["T"].type = dtype
    if op == "Merge":
      result.attr["N"].i = len(_BRANCHES)
    self.nodes.append(result)
    return result

  def _branch(
    self, i: int, inputs: Sequence[str], pivot: NodeDef
  ) -> function_body.FunctionBody:
    function: Any = self.node.attr[_BRANCHES[i]].func
    body = function_body.FunctionBody(
      self.node,
      function_body.find(self.node, function.name, len(inputs), self.functions),
      function.attr,
      self.functions,
      self.used,
      f"{self.node.name}/{_BRANCHES[i].removesuffix('_branch')}",
    )
    gate = ["^" + pivot.name]
    self.nodes.extend(body.instantiate(inputs, gate, gated=True))
    return body

  def _merge(
    self,
    branches: Sequence[function_body.FunctionBody],
    pivots: Sequence[NodeDef],
  ) -> dict[str, str]:
    """Joins outputs and ends; returns what moved."""
    moved = {}
    for i, dtype in enumerate(self.node.attr["Tout"].list.type):
      ends = [body.outputs[i] for body in branches]
      merge = self._add("Merge", f"merge_{i}", ends, dtype)
      moved[node_lib.join_tensor(self.node.name, i)] = merge.name
    boolean = tf.bool.as_datatype_enum
    done = [
      self._add(
        "Identity", f"{at}_done", [pivot.name, "^" + body.done], boolean
      ).name
      for at, pivot, body in zip("ft", pivots, branches, strict=True)
    ]
    moved["^" + self.node.name] = (
      "^" + self._add("Merge", "done", done, boolean).name
    )
    return moved


def _output(node: NodeDef, output: int) -> str:
  return node_lib.join_tensor(node.name, output)
