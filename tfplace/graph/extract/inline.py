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
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf
from tensorflow.python.framework import tensor_util

from tfplace.errors import ExtractionError
from tfplace.graph.extract import function_body, node_names, op_defs

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
      node.input.extend(node_names.controls_last(inputs))


def _follow(moved: Mapping[str, str], name: str) -> str:
  while name in moved:
    name = moved[name]
  return name


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
  body = function_body.FunctionBody(
    call, function, attrs, state.functions, state.used
  )
  nodes = body.instantiate(inputs)
  state.moved.update(body.moved)
  return nodes


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
