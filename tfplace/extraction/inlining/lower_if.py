"""Lowers an `If` to `Switch` and `Merge`, as TensorFlow does before it runs.

Each input passes a `Switch` into one of the branches; the other branch's ops
are dead and do not run. Ops of a branch that read no input wait for a pivot of
their branch. A simulated step counts both branches, which is an upper bound.
Follows the scheme of TensorFlow's `lower_if_op.cc`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tfplace.extraction import nodes as node_names
from tfplace.extraction import nodes as op_defs
from tfplace.extraction.inlining import function_body

NodeDef: TypeAlias = tf.compat.v1.NodeDef
_BRANCHES = ("else_branch", "then_branch")  # by output index of a Switch


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
  functions: Mapping[str, op_defs.FunctionDef],
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
    functions: Mapping[str, op_defs.FunctionDef],
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
    unique = node_names.unique_name(f"{self.node.name}/{name}", self.used)
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
      moved[node_names.join_tensor(self.node.name, i)] = merge.name
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
  return node_names.join_tensor(node.name, output)
