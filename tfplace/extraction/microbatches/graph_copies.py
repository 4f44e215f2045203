"""Copies of a traced function's graph, made without tracing it again.

Each copy is imported into the graph that is being built, under a name scope of
its own, with tensors of that graph in the place of the function's inputs.
Variables that the function does not assign are read once, outside of the
copies, so that a device that needs one gets it by one transfer.
"""

import functools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

_READ = "ReadVariableOp"
_GIVEN = ("Placeholder", "NoOp")


class GraphTemplate:
  """The graph of a traced function, to be copied into the current graph.

  Args:
    graph: the `FuncGraph`; its control edges keep side effects in order.
    results: tensors of it that copies are to have.
    without: names of assignments that copies leave out; what reads the
      variable after one gets the value that it assigns.

  Attributes:
    ops: names of the ops that a copy has: those that the results and the side
      effects of the function need.
  """

  def __init__(
    self,
    graph: Any,
    results: Iterable[tf.Tensor],
    without: Collection[str] = (),
  ) -> None:
    self._graph = graph
    self._captures = {inner.name: outer for outer, inner in graph.captures}
    self._instead = self._assigned_values(without)
    self._reads = self._shared_reads(without)
    roots = [tensor.op for tensor in results]
    roots += [op for op in graph.get_operations() if _has_effect(op)]
    reads = {op.name for op in self._reads.values()}
    self._outside = reads | set(without)
    self._prepared: dict[frozenset[str], tuple[Any, set[str]]] = {}
    self.ops = self.needed_by(roots)

  def _assigned_values(self, without: Collection[str]) -> dict[str, tf.Tensor]:
    """Tensor that is read of a variable -> what was assigned to it before."""
    last: dict[str, tf.Tensor] = {}
    instead = {}
    for op in self._graph.get_operations():
      if op.name in without:
        last[op.inputs[0].name] = op.inputs[1]
      elif op.type == _READ and op.inputs[0].name in last:
        instead[op.outputs[0].name] = last[op.inputs[0].name]
    return instead

  def _shared_reads(self, without: Collection[str]) -> dict[str, tf.Operation]:
    """Tensor name -> op, of reads of variables that no copy assigns."""
    assigned = {
      op.inputs[0].name
      for op in assignments(self._graph)
      if op.name not in without
    }
    return {
      op.outputs[0].name: op
      for op in self._graph.get_operations()
      if op.type == _READ
      and op.inputs[0].name in self._captures
      and op.inputs[0].name not in assigned
      and op.outputs[0].name not in self._instead
    }

  def _inputs(self, op: tf.Operation) -> list[tf.Tensor]:
    return [self._instead.get(t.name, t) for t in op.inputs]

  @functools.cached_property
  def _nodes(self) -> dict[str, Any]:
    return {node.name: node for node in self._graph.as_graph_def().node}

  def captured(self, values: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What the function captured, in the current graph, variables read once.

    Args:
      values: name of a handle in the current graph -> value of the variable;
        what is read here is added.

    Returns:
      Tensor name in the function -> tensor.
    """
    current = tf.compat.v1.get_default_graph()
    given = {
      name: current.capture(outer) for name, outer in self._captures.items()
    }
    for tensor, op in self._reads.items():
      handle = given[op.inputs[0].name]
      if handle.name not in values:
        values[handle.name] = tf.raw_ops.ReadVariableOp(
          resource=handle, dtype=op.get_attr("dtype"), name=op.name
        )
      given[tensor] = values[handle.name]
    return given

  def needed_by(self, roots: Iterable[tf.Operation]) -> set[str]:
    """Names of the ops, and of all that they need in a copy."""
    found: set[str] = set()
    open_ops = list(roots)
    while open_ops:
      op = open_ops.pop()
      given = op.name in self._outside or op.type == "Placeholder"
      if not given and op.name not in found:
        found.add(op.name)
        open_ops += [tensor.op for tensor in self._inputs(op)]
        open_ops += op.control_inputs
    return found

  def copy(
    self,
    scope: str,
    given: Mapping[str, tf.Tensor],
    ops: Collection[str] | None = None,
  ) -> dict[str, tf.Tensor]:
    """Imports the ops once.

    Args:
      scope: name scope with a slash at its end.
      given: tensor name in the function -> tensor to take its place, of every
        tensor that is not made by `ops`.
      ops: names of the ops; None for all that are needed.

    Returns:
      Tensor name in the function -> tensor of the copy.
    """
    # TensorFlow forgets what loops call once the graph that made it is gone.
    current: Any = tf.compat.v1.get_default_graph()
    kept = getattr(current, "_tfplace_copied", ())
    current._tfplace_copied = (*kept, self._graph)
    chosen = self.ops if ops is None else ops
    key = frozenset(chosen)  # the same for all microbatches of a size
    if key not in self._prepared:
      self._prepared[key] = self._graph_def(chosen)
    graph_def, used = self._prepared[key]
    imported = tf.graph_util.import_graph_def(
      graph_def,
      input_map={name: given[name] for name in used},
      return_elements=[node.name for node in graph_def.node],
      name=scope,
    )
    return {
      f"{node.name}:{i}": tensor
      for node, op in zip(graph_def.node, imported, strict=True)
      for i, tensor in enumerate(op.outputs)
    }

  def _graph_def(self, ops: Collection[str]) -> tuple[Any, set[str]]:
    """The ops, and the names of the tensors that they need from elsewhere."""
    whole = self._graph.as_graph_def(add_shapes=False)
    graph_def = tf.compat.v1.GraphDef(
      versions=whole.versions, library=whole.library
    )
    used = set()
    for op in self._graph.get_operations():
      if op.name not in ops:
        continue
      node = graph_def.node.add()
      node.CopyFrom(self._nodes[op.name])
      node.device = ""  # the device functions of the current graph decide
      here = [c for c in op.control_inputs if c.name in ops]
      inputs = self._inputs(op)
      used |= {t.name for t in inputs if t.op.name not in ops}
      del node.input[:]
      node.input.extend(tensor.name for tensor in inputs)
      node.input.extend(f"^{control.name}" for control in here)
      if not _colocated(node).issubset(ops):
        del node.attr["_class"]  # with what is read once, outside
    return graph_def, used


def _colocated(node: Any) -> set[str]:
  """Names of the ops that a node shares a device with."""
  if "_class" not in node.attr:
    return set()
  groups = [group.decode() for group in node.attr["_class"].list.s]
  return {g.removeprefix("loc:@") for g in groups if g.startswith("loc:@")}


def assignments(graph: Any) -> list[tf.Operation]:
  """Ops that assign variables."""
  return [
    op
    for op in graph.get_operations()
    if op.op_def.is_stateful
    and op.type != _READ
    and op.inputs
    and op.inputs[0].dtype == tf.resource
    and ("Assign" in op.type or "Scatter" in op.type)
  ]


def _has_effect(op: tf.Operation) -> bool:
  return op.op_def.is_stateful and op.type not in (_READ, *_GIVEN)
