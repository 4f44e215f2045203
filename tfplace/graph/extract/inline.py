"""Inlines function calls of a GraphDef, exactly and with nothing dropped.

A call becomes the nodes of its body under the call's name as a scope. Data
goes straight from producer to consumer; control edges keep their meaning: what
waited for the call waits for its control outputs, and what the call waited for
holds back the body. This is what TensorFlow's own inliner does at run time.
`While` and an `If` of unknown predicate stay one op, since a loop is not a
directed acyclic graph and both branches of an `If` never run in one step; an
`If` of constant predicate becomes its branch.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.errors import ExtractionError
from tfplace.graph.extract import node_names, op_defs

CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
CONDITIONS = frozenset(("If", "StatelessIf"))
MAX_NODES = 5_000_000
_MAX_DEPTH = 100

NodeDef: TypeAlias = tf.compat.v1.NodeDef


@dataclasses.dataclass(frozen=True)
class Inlined:
  """A flat graph and where the tensors and nodes of the old one went.

  Attributes:
    graph_def: the flat graph; its library holds what the rest still needs.
    moved: input string -> input string, for outputs of inlined calls
      ("call", "call:1") and for their control ("^call").
  """

  graph_def: tf.compat.v1.GraphDef
  moved: Mapping[str, str]

  def tensor(self, name: str) -> str:
    """The full name ("node:0") in the flat graph of a tensor of the old."""
    node, output = node_names.split_tensor(
      _follow(self.moved, node_names.canonical(name))
    )
    return f"{node}:{output}"

  def node(self, name: str) -> str:
    """The node of the flat graph that ends when the old graph's ended."""
    return _follow(self.moved, "^" + name)[1:]


def inline_functions(graph_def: tf.compat.v1.GraphDef) -> Inlined:
  """Inlines every call, also those inside bodies.

  Raises:
    ExtractionError: a function is missing, recursive, called with the wrong
      number of inputs, or the result passes `MAX_NODES`.
  """
  state = _State({f.signature.name: f for f in graph_def.library.function})
  nodes = list(graph_def.node)
  state.used.update(node.name for node in nodes)
  for _ in range(_MAX_DEPTH):
    nodes, found = state.expand(nodes)
    if not found:
      break
  else:
    raise ExtractionError(
      f"functions are nested deeper than {_MAX_DEPTH}: is one recursive?"
    )
  result = tf.compat.v1.GraphDef(versions=graph_def.versions)
  result.node.extend(nodes)
  _keep_needed_functions(result, state.functions)
  return Inlined(result, state.moved)


class _State:
  """The library, the names in use, and what has moved so far."""

  def __init__(self, functions: Mapping[str, op_defs.FunctionDef]) -> None:
    self.functions = functions
    self.used: set[str] = set()
    self.moved: dict[str, str] = {}

  def expand(self, nodes: Sequence[NodeDef]) -> tuple[list[NodeDef], bool]:
    """Inlines one level of calls; also says whether there was one."""
    index = {node.name: node for node in nodes}
    result: list[NodeDef] = []
    found = False
    for node in nodes:
      call = _as_call(node, index, self.functions)
      if call is None:
        result.append(node)
        continue
      found = True
      result.extend(_expand_call(node, *call, self))
      if len(result) > MAX_NODES:
        raise ExtractionError(
          f"inlining {node.name!r} passes {MAX_NODES} nodes", op=node.name
        )
    if found:
      for node in result:
        self._rewire(node)
    return result, found

  def _rewire(self, node: NodeDef) -> None:
    inputs = [_follow(self.moved, node_names.canonical(i)) for i in node.input]
    if inputs != list(node.input):
      del node.input[:]
      node.input.extend(_unique_controls(inputs))


def _follow(moved: Mapping[str, str], name: str) -> str:
  while name in moved:
    name = moved[name]
  return name


def _unique_controls(inputs: Iterable[str]) -> list[str]:
  """Data inputs first, then each control input once (TensorFlow's order)."""
  inputs = list(inputs)
  data = [i for i in inputs if not i.startswith("^")]
  return data + list(dict.fromkeys(i for i in inputs if i.startswith("^")))


def _as_call(
  node: NodeDef,
  index: Mapping[str, NodeDef],
  functions: Mapping[str, op_defs.FunctionDef],
) -> tuple[str, Mapping[str, object], list[str]] | None:
  """Function name, its attributes and the data inputs, if `node` is a call."""
  data = [i for i in node.input if not i.startswith("^")]
  if node.op in functions:
    return node.op, node.attr, data
  if node.op in CALLS:
    function = node.attr["f"].func
    return function.name, function.attr, data
  if node.op in CONDITIONS and data:
    taken = _constant_predicate(data[0], index)
    if taken is not None:
      key = "then_branch" if taken else "else_branch"
      function = node.attr[key].func
      return function.name, function.attr, data[1:]
  return None


def _constant_predicate(
  tensor: str, index: Mapping[str, NodeDef]
) -> bool | None:
  node = index.get(node_names.split_tensor(tensor)[0])
  while node is not None and node.op in ("Identity", "StopGradient"):
    node = index.get(node_names.split_tensor(node.input[0])[0])
  if node is None or node.op != "Const":
    return None
  value = tensor_util.MakeNdarray(node.attr["value"].tensor)
  # TensorFlow's rule: a scalar counts by its value, else by being non-empty.
  return bool(value) if value.ndim == 0 else value.size > 0


def _expand_call(
  call: NodeDef,
  name: str,
  attrs: Mapping[str, object],
  inputs: Sequence[str],
  state: _State,
) -> list[NodeDef]:
  """The nodes that stand for `call`; records what moved in `state`."""
  if name not in state.functions:
    raise ExtractionError(
      f"node {call.name!r} calls function {name!r}, which the library lacks",
      op=call.name,
    )
  function = state.functions[name]
  if len(inputs) != len(function.signature.input_arg):
    raise ExtractionError(
      f"node {call.name!r} calls function {name!r} with {len(inputs)} inputs"
      f" instead of {len(function.signature.input_arg)}",
      op=call.name,
    )
  body = _Body(call, function, attrs, state)
  return body.instantiate(inputs)


class _Body:
  """One instance of a function's body in the place of a call."""

  def __init__(
    self,
    call: NodeDef,
    function: op_defs.FunctionDef,
    attrs: Mapping[str, object],
    state: _State,
  ) -> None:
    self.call = call
    self.function = function
    self.attrs = attrs
    self.state = state
    self.inner = {node.name for node in function.node_def}
    self.arguments: set[str] = set()
    self.scope = self._free_scope()
    self.controls = [i for i in call.input if i.startswith("^")]
    self.tensors: dict[str, str] = {}

  def _free_scope(self) -> str:
    scope, number = self.call.name, 0
    wanted = [*self.inner, "input_control_node", "output_control_node"]
    while any(f"{scope}/{name}" in self.state.used for name in wanted):
      number += 1
      scope = f"{self.call.name}_{number}"
    self.state.used.update(f"{scope}/{name}" for name in wanted)
    return scope

  def instantiate(self, inputs: Sequence[str]) -> list[NodeDef]:
    """Nodes of the instance, in the order of the body."""
    nodes: list[NodeDef] = []
    if len(self.controls) > 1:  # one node to wait for instead of many edges
      nodes.append(self._no_op("input_control_node", self.controls))
      self.controls = ["^" + nodes[0].name]
    arguments = self.function.signature.input_arg
    for argument, tensor in zip(arguments, inputs, strict=True):
      for text in (argument.name, f"{argument.name}:0"):
        self.tensors[text] = node_names.canonical(tensor)
        self.arguments.add(text)
    copies = [self._copy(node) for node in self.function.node_def]
    for copy, node in zip(copies, self.function.node_def, strict=True):
      self._connect(copy, node)
    nodes.extend(copies)
    nodes.extend(self._finish())
    return nodes

  def _no_op(self, name: str, inputs: Sequence[str]) -> NodeDef:
    return NodeDef(
      name=f"{self.scope}/{name}",
      op="NoOp",
      input=inputs,
      device=self.call.device,
    )

  def _copy(self, node: NodeDef) -> NodeDef:
    copy = NodeDef()
    copy.CopyFrom(node)
    copy.name = f"{self.scope}/{node.name}"
    copy.device = node.device or self.call.device
    for key, value in node.attr.items():
      if value.WhichOneof("value") == "placeholder":
        copy.attr[key].CopyFrom(self.attrs[value.placeholder])
    if "_class" in copy.attr:
      classes = copy.attr["_class"].list.s
      classes[:] = [self._constraint(text) for text in classes]
    op_def = op_defs.op_def_of(copy, self.state.functions)
    output = 0
    for arg in op_def.output_arg:
      count = len(op_defs.arg_types(copy, op_def, arg))
      for i in range(count):
        flat = node_names.join_tensor(copy.name, output)
        self.tensors[f"{node.name}:{arg.name}:{i}"] = flat
        output += 1
    return copy

  def _constraint(self, text: bytes) -> bytes:
    """A `loc:@` constraint on a node of the body, in its scope."""
    target = text.decode(errors="replace").removeprefix("loc:@")
    inside = text.startswith(b"loc:@") and target in self.inner
    return f"loc:@{self.scope}/{target}".encode() if inside else text

  def _connect(self, copy: NodeDef, node: NodeDef) -> None:
    inputs = [self._input(node, text) for text in node.input]
    # What starts the body, and what reads an argument, waits for the call's
    # control inputs; everything else follows from these.
    starts = not any(
      node_names.split_tensor(text.split(":")[0])[0] in self.inner
      for text in node.input
    )
    if starts or not self.arguments.isdisjoint(node.input):
      inputs.extend(self.controls)
    del copy.input[:]
    copy.input.extend(_unique_controls(inputs))

  def _input(self, node: NodeDef, text: str) -> str:
    if text.startswith("^"):
      if text[1:] in self.inner:
        return f"^{self.scope}/{text[1:]}"
      if text[1:] in self.arguments:  # control edge from an argument
        return "^" + node_names.split_tensor(self.tensors[text[1:]])[0]
    elif text in self.tensors:
      return self.tensors[text]
    raise ExtractionError(
      f"node {node.name!r} of function {self.function.signature.name!r} reads"
      f" unknown input {text!r}",
      op=node.name,
    )

  def _finish(self) -> list[NodeDef]:
    """Records outputs and control of the call; the nodes that this needs."""
    nodes = []
    after = []
    for i, arg in enumerate(self.function.signature.output_arg):
      text = self.function.ret[arg.name]
      tensor = self._input(self.call, text)
      if text in self.arguments and self.controls:  # an argument passed through
        identity = self._identity(i, arg, tensor)
        nodes.append(identity)
        tensor = identity.name
      self.state.moved[node_names.join_tensor(self.call.name, i)] = tensor
      after.append("^" + node_names.split_tensor(tensor)[0])
    effects = self._effects()
    done = self._no_op(
      "output_control_node",
      _unique_controls([*effects, *after, *self.controls]),
    )
    self.state.moved["^" + self.call.name] = "^" + done.name
    return [*nodes, done]

  def _identity(self, i: int, arg: op_defs.OpDef, tensor: str) -> NodeDef:
    name = node_names.unique_name(f"{self.scope}/output_{i}", self.state.used)
    self.state.used.add(name)
    identity = NodeDef(
      name=name,
      op="Identity",
      input=[tensor, *self.controls],
      device=self.call.device,
    )
    dtype = arg.type or self.attrs[arg.type_attr].type  # type: ignore[attr-defined]
    identity.attr["T"].type = dtype
    return identity

  def _effects(self) -> list[str]:
    """Control inputs for what the call's end waits for."""
    if self.function.control_ret:
      names = list(self.function.control_ret.values())
    else:  # an old function: every stateful node runs
      names = [
        node.name
        for node in self.function.node_def
        if op_defs.op_def_of(node, self.state.functions).is_stateful
      ]
    return [f"^{self.scope}/{name}" for name in names]


def _keep_needed_functions(
  graph_def: tf.compat.v1.GraphDef,
  functions: Mapping[str, op_defs.FunctionDef],
) -> None:
  """Fills the library with what the nodes reach, in order of discovery."""
  needed: dict[str, None] = {}
  queue = list(graph_def.node)
  for node in queue:  # grows while it is read
    names = op_defs.function_names(node)
    if node.op in functions:
      names.append(node.op)
    for name in names:
      if name in functions and name not in needed:
        needed[name] = None
        queue.extend(functions[name].node_def)
  graph_def.library.function.extend(functions[name] for name in needed)
