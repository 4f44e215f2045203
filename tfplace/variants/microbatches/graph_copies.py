"""Copies of a traced graph, made without tracing again.

Each copy is imported into the graph under construction, in its own name scope,
with tensors of that graph as the function's inputs. Variables that the function
does not assign are read once, outside the copies, so one transfer brings them
to a device.
"""

import functools
from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

import tensorflow as tf

from tfplace.extraction.structure import locations
from tfplace.graph.paths import reached

_READ = "ReadVariableOp"
_GIVEN = ("Placeholder", "NoOp")


class GraphTemplate:
  """Graph of a traced function that can be copied into the current graph.

  Args:
    graph: the `FuncGraph`; its control edges order side effects.
    results: tensors of `graph` that copies must contain.
    without: names of assignments that copies omit; later reads of the variable
      get the assigned value instead.

  Attributes:
    ops: names of the ops of a copy: ancestors of the results and of the
      function's side effects.
  """

  def __init__(
    self,
    graph: Any,
    results: Iterable[tf.Tensor],
    without: Collection[str],
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
    """Maps reads of a variable to the value assigned to it before."""
    last: dict[str, tf.Tensor] = {}
    instead = {}
    for op in self._graph.get_operations():
      if op.name in without:
        last[op.inputs[0].name] = op.inputs[1]
      elif op.type == _READ and op.inputs[0].name in last:
        instead[op.outputs[0].name] = last[op.inputs[0].name]
    return instead

  def _shared_reads(self, without: Collection[str]) -> dict[str, tf.Operation]:
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

  def captured(
    self, values: dict[str, tf.Tensor], relay: str
  ) -> dict[str, tf.Tensor]:
    """Brings the function's captures into the current graph.

    Args:
      values: values of variables by handle name, with the prefix `relay`. Each
        variable is read once, and new values are added.
      relay: scope of `Identity` ops that pass on the values, or "".

    Returns:
      Tensors by their names in the function.
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
      if relay + handle.name not in values:
        values[relay + handle.name] = tf.identity(
          values[handle.name], name=relay + op.name
        )
      given[tensor] = values[relay + handle.name]
    return given

  def needed_by(self, roots: Iterable[tf.Operation]) -> set[str]:
    """Returns the names of the ops and of their ancestors in a copy."""

    def inside(ops: Iterable[tf.Operation]) -> list[str]:
      return [
        op.name
        for op in ops
        if op.name not in self._outside and op.type != "Placeholder"
      ]

    def before(name: str) -> list[str]:
      op = self._graph.get_operation_by_name(name)
      sources = [tensor.op for tensor in self._inputs(op)]
      return inside([*sources, *op.control_inputs])

    return set(reached(inside(roots), before))

  def copy(
    self, scope: str, given: Mapping[str, tf.Tensor], ops: Set[str]
  ) -> dict[str, tf.Tensor]:
    """Imports ops once.

    Args:
      scope: name scope, ending with a slash.
      given: tensor name in the function -> replacement, for every tensor that
        `ops` do not produce.
      ops: names of the ops.

    Returns:
      Tensor name in the function -> tensor of the copy.
    """
    # The functions that loops call live only as long as the graph that created
    # them, so the current graph keeps that graph alive.
    current: Any = tf.compat.v1.get_default_graph()
    kept = getattr(current, "_tfplace_copied", ())
    current._tfplace_copied = (*kept, self._graph)
    key = frozenset(ops)  # equal for all microbatches of one size
    if key not in self._prepared:
      self._prepared[key] = self._graph_def(ops)
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

  def _graph_def(self, ops: Set[str]) -> tuple[Any, set[str]]:
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
      node.device = ""  # device functions of the current graph set it
      here = [c for c in op.control_inputs if c.name in ops]
      inputs = self._inputs(op)
      used |= {t.name for t in inputs if t.op.name not in ops}
      del node.input[:]
      node.input.extend(tensor.name for tensor in inputs)
      node.input.extend(f"^{control.name}" for control in here)
      if not set(locations(node)) <= ops:
        del node.attr["_class"]  # colocated with ops outside the copy
    return graph_def, used


def ancestors(tensor: tf.Tensor) -> Iterable[str]:
  """Returns the names of the tensor and of all it is computed from."""
  graph: Any = tensor.graph
  return reached(
    [tensor.name],
    lambda name: [t.name for t in graph.get_tensor_by_name(name).op.inputs],
  )


def assignments(graph: Any) -> list[tf.Operation]:
  """Lists the ops that assign variables."""
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
