"""Nodes that replace a call when its function is inlined."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfplace.errors import ExtractionError
from tfplace.extraction import nodes as node_lib
from tfplace.extraction.nodes import NodeDef

_DEFAULT = re.compile(r"(Stateful)?PartitionedCall(_\d+)?\Z")


class FunctionBody:
  """One instance of a function body that replaces a call.

  Attributes:
    outputs: input strings of the call's outputs; set by `instantiate`.
    done: node that ends when the call would end; set by `instantiate`.
  """

  def __init__(
    self,
    call: NodeDef,
    function: node_lib.FunctionDef,
    attrs: Mapping[str, object],
    *,
    functions: Mapping[str, node_lib.FunctionDef],
    used: set[str],
    name: str | None,
  ) -> None:
    self.call = call
    self.name = name or call.name
    self.function = function
    self.attrs = attrs
    self.functions = functions
    self.used = used
    self.outputs: list[str] = []
    self.done = ""
    self.arguments: set[str] = set()
    self.names = self._free_names()
    self.controls: list[str] = []
    self.gated = False
    self.tensors: dict[str, str] = {}

  def _free_names(self) -> dict[str, str]:
    """Maps nodes of the body to unused names in the scope of the call."""
    inner = [node.name for node in self.function.node_def]
    for scope in self._scopes():
      clashes = [name for name in inner if scope + name in self.used]
      outer = scope != f"{self.name}/"
      # Short names such as Identity and NoOp may get a number instead, which
      # keeps them readable.
      if not clashes or (outer and not any("/" in name for name in clashes)):
        break
    names = {name: scope + name for name in inner}
    self.used.update(names.values())
    for name in clashes:
      names[name] = self._unique(scope + name)
    return names

  def _unique(self, wanted: str) -> str:
    name = node_lib.unique_name(wanted, self.used)
    self.used.add(name)
    return name

  def _scopes(self) -> Iterator[str]:
    around, _, last = self.name.rpartition("/")
    if _DEFAULT.match(last):
      yield f"{around}/" if around else ""
    yield f"{self.name}/"
    for number in itertools.count(1):
      yield f"{self.name}_{number}/"

  def instantiate(
    self,
    inputs: Sequence[str],
    controls: Sequence[str],
    gated: bool = False,
    conditional: bool = False,
  ) -> list[NodeDef]:
    """Creates the nodes of the instance, in the order of the body.

    Args:
      controls: control inputs ("^node") that the body waits for.
      gated: whether every input already waits for `controls`.
      conditional: whether inputs may be dead; if so, no op runs without them.
    """
    nodes: list[NodeDef] = []
    self.gated = gated
    controls = list(controls)
    if conditional and inputs:
      # A control edge from a Switch does not tell which branch is dead. A
      # control edge from an op that reads one branch does.
      first = self.function.signature.input_arg[0]
      nodes.append(self._identity("input_0", first, inputs[0]))
      controls.append("^" + nodes[0].name)
    if len(controls) > 1:  # one node to wait for, instead of many edges
      nodes.append(self._no_op("input_control_node", controls))
      controls = ["^" + nodes[-1].name]
    self.controls = controls
    arguments = self.function.signature.input_arg
    for argument, tensor in zip(arguments, inputs, strict=True):
      for text in (argument.name, f"{argument.name}:0"):
        self.tensors[text] = node_lib.canonical(tensor)
        self.arguments.add(text)
    copies = [self._copy(node) for node in self.function.node_def]
    for copy, node in zip(copies, self.function.node_def, strict=True):
      self._connect(copy, node)
    nodes.extend(copies)
    nodes.extend(self._finish())
    return nodes

  def _no_op(self, name: str, inputs: Sequence[str]) -> NodeDef:
    name = self._unique(f"{self.name}/{name}")
    return NodeDef(name=name, op="NoOp", input=inputs, device=self.call.device)

  def _copy(self, node: NodeDef) -> NodeDef:
    copy = NodeDef()
    copy.CopyFrom(node)
    copy.name = self.names[node.name]
    copy.device = node.device or self.call.device
    for key, value in node.attr.items():
      if value.WhichOneof("value") == "placeholder":
        copy.attr[key].CopyFrom(self._attr(node, value.placeholder))
    if "_class" in copy.attr:
      classes = copy.attr["_class"].list.s
      classes[:] = [self._constraint(text) for text in classes]
    op_def = node_lib.op_def_of(copy, self.functions)
    output = 0
    for arg in op_def.output_arg:
      for i in range(len(node_lib.arg_types(copy, op_def, arg))):
        flat = node_lib.join_tensor(copy.name, output)
        self.tensors[f"{node.name}:{arg.name}:{i}"] = flat
        output += 1
    return copy

  def _attr(self, node: NodeDef, name: str) -> Any:
    if name not in self.attrs:
      raise ExtractionError(
        f"node {self.call.name!r} gives no attribute {name!r}, which node"
        f" {node.name!r} of function {self.function.signature.name!r} needs",
        op=self.call.name,
      )
    return self.attrs[name]

  def _constraint(self, text: bytes) -> bytes:
    target = text.decode(errors="replace").removeprefix("loc:@")
    inside = text.startswith(b"loc:@") and target in self.names
    return f"loc:@{self.names[target]}".encode() if inside else text

  def _connect(self, copy: NodeDef, node: NodeDef) -> None:
    inputs = [self._input(node, text) for text in node.input]
    # Nodes without inputs and readers of arguments wait for the call's control
    # inputs. All other nodes depend on those.
    reads = any(text.lstrip("^") in self.arguments for text in node.input)
    if not node.input or (reads and not self.gated):
      inputs.extend(self.controls)
    del copy.input[:]
    copy.input.extend(node_lib.controls_last(inputs))

  def _input(self, node: NodeDef, text: str) -> str:
    if text.startswith("^"):
      if text[1:] in self.names:
        return "^" + self.names[text[1:]]
      if text[1:] in self.arguments:  # control edge from an argument
        return "^" + node_lib.split_tensor(self.tensors[text[1:]])[0]
    elif text in self.tensors:
      return self.tensors[text]
    raise ExtractionError(
      f"node {node.name!r} of function {self.function.signature.name!r} reads"
      f" unknown input {text!r}",
      op=node.name,
    )

  def _finish(self) -> list[NodeDef]:
    """Sets `outputs` and `done`, and returns the nodes that these need."""
    nodes = []
    for i, arg in enumerate(self.function.signature.output_arg):
      text = self.function.ret[arg.name]
      tensor = self._input(self.call, text)
      passed_on = text in self.arguments
      if passed_on and self.controls and not self.gated:
        identity = self._identity(f"output_{i}", arg, tensor)
        nodes.append(identity)
        tensor = identity.name
      self.outputs.append(tensor)
    ends = ["^" + node_lib.split_tensor(t)[0] for t in self.outputs]
    done = self._no_op(
      "output_control_node",
      node_lib.controls_last([*self._effects(), *ends, *self.controls]),
    )
    self.done = done.name
    return [*nodes, done]

  def _identity(self, wanted: str, arg: Any, tensor: str) -> NodeDef:
    identity = NodeDef(
      name=self._unique(f"{self.name}/{wanted}"),
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
    """Lists the control inputs that the end of the call waits for."""
    if self.function.control_ret:
      names = list(self.function.control_ret.values())
    else:  # a function without control outputs: run every stateful node
      names = [
        node.name
        for node in self.function.node_def
        if node_lib.op_def_of(node, self.functions).is_stateful
      ]
    return [self._input(self.call, "^" + name) for name in names]
