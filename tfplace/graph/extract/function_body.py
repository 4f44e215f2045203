"""The nodes that stand for one call once its function is inlined."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.graph.extract import node_names, op_defs

NodeDef: TypeAlias = tf.compat.v1.NodeDef
_DEFAULT = re.compile(r"(Stateful)?PartitionedCall(_\d+)?\Z")


class FunctionBody:
  """One instance of a function's body in the place of a call."""

  def __init__(
    self,
    call: NodeDef,
    function: op_defs.FunctionDef,
    attrs: Mapping[str, object],
    functions: Mapping[str, op_defs.FunctionDef],
    used: set[str],
  ) -> None:
    self.call = call
    self.function = function
    self.attrs = attrs
    self.functions = functions
    self.used = used
    self.moved: dict[str, str] = {}
    self.inner = {node.name for node in function.node_def}
    self.arguments: set[str] = set()
    self.scope = self._free_scope()
    self.controls = [i for i in call.input if i.startswith("^")]
    self.tensors: dict[str, str] = {}

  def _free_scope(self) -> str:
    """The call's name and "/", with a number where names would clash.

    A call that TensorFlow named itself adds nothing that a reader could use:
    its body takes the scope around it where that is free.
    """
    name = self.call.name
    around, _, last = name.rpartition("/")
    scopes = [f"{around}/" if around else ""] if _DEFAULT.match(last) else []
    scopes += [f"{name}/"]
    number = 0
    while any(scopes[0] + inner in self.used for inner in self.inner):
      scopes.pop(0)
      number += 1
      scopes.append(f"{name}_{number}/")
    self.used.update(scopes[0] + inner for inner in self.inner)
    return scopes[0]

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
    unique = node_names.unique_name(f"{self.call.name}/{name}", self.used)
    self.used.add(unique)
    return NodeDef(
      name=unique,
      op="NoOp",
      input=inputs,
      device=self.call.device,
    )

  def _copy(self, node: NodeDef) -> NodeDef:
    copy = NodeDef()
    copy.CopyFrom(node)
    copy.name = f"{self.scope}{node.name}"
    copy.device = node.device or self.call.device
    for key, value in node.attr.items():
      if value.WhichOneof("value") == "placeholder":
        copy.attr[key].CopyFrom(self._attr(node, value.placeholder))
    if "_class" in copy.attr:
      classes = copy.attr["_class"].list.s
      classes[:] = [self._constraint(text) for text in classes]
    op_def = op_defs.op_def_of(copy, self.functions)
    output = 0
    for arg in op_def.output_arg:
      count = len(op_defs.arg_types(copy, op_def, arg))
      for i in range(count):
        flat = node_names.join_tensor(copy.name, output)
        self.tensors[f"{node.name}:{arg.name}:{i}"] = flat
        output += 1
    return copy

  def _attr(self, node: NodeDef, name: str) -> Any:
    """The call's attribute that a polymorphic body refers to."""
    if name not in self.attrs:
      raise ExtractionError(
        f"node {self.call.name!r} gives no attribute {name!r}, which node"
        f" {node.name!r} of function {self.function.signature.name!r} needs",
        op=self.call.name,
      )
    return self.attrs[name]

  def _constraint(self, text: bytes) -> bytes:
    """A `loc:@` constraint on a node of the body, in its scope."""
    target = text.decode(errors="replace").removeprefix("loc:@")
    inside = text.startswith(b"loc:@") and target in self.inner
    return f"loc:@{self.scope}{target}".encode() if inside else text

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
    copy.input.extend(node_names.controls_last(inputs))

  def _input(self, node: NodeDef, text: str) -> str:
    if text.startswith("^"):
      if text[1:] in self.inner:
        return f"^{self.scope}{text[1:]}"
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
      self.moved[node_names.join_tensor(self.call.name, i)] = tensor
      after.append("^" + node_names.split_tensor(tensor)[0])
    effects = self._effects()
    done = self._no_op(
      "output_control_node",
      node_names.controls_last([*effects, *after, *self.controls]),
    )
    self.moved["^" + self.call.name] = "^" + done.name
    return [*nodes, done]

  def _identity(self, i: int, arg: Any, tensor: str) -> NodeDef:
    name = node_names.unique_name(f"{self.call.name}/output_{i}", self.used)
    self.used.add(name)
    identity = NodeDef(
      name=name,
      op="Identity",
      input=[tensor, *self.controls],
      device=self.call.device,
    )
    if arg.type_attr:
      identity.attr["T"].CopyFrom(self._attr(self.call, arg.type_attr))
    else:
      identity.attr["T"].type = arg.type
    return identity

  def _effects(self) -> list[str]:
    """Control inputs for what the call's end waits for."""
    if self.function.control_ret:
      names = list(self.function.control_ret.values())
    else:  # an old function: every stateful node runs
      names = [
        node.name
        for node in self.function.node_def
        if op_defs.op_def_of(node, self.functions).is_stateful
      ]
    return [f"^{self.scope}{name}" for name in names]
