"""Which kinds of device have a kernel for an op, by TensorFlow's registry.

The pip build of TensorFlow for Linux registers its GPU kernels on hosts
without a GPU too. A `DEFAULT` kernel serves every kind (methods.md, trap 15).
An int32 kernel that keeps its tensors in host memory counts as its device's.
XLA's pseudo devices do not count.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels as registry

from tfplace.graph.extract import op_defs

KINDS = ("CPU", "GPU")
_DEFAULT = "DEFAULT"


class KernelTable:
  """Answers `kinds` for the nodes of one graph; caches by op and types."""

  def __init__(self, functions: Mapping[str, op_defs.FunctionDef]) -> None:
    self._functions = functions
    self._kernels: dict[str, list[Any]] = {}
    self._bodies: dict[str, frozenset[str]] = {}

  def kinds(self, node: tf.compat.v1.NodeDef) -> frozenset[str]:
    """Kinds that can run the node; empty where nothing can.

    An op that calls functions runs where every op of their bodies runs, since
    its body is placed on its device.
    """
    result = self._own_kinds(node)
    for name in op_defs.function_names(node):
      result &= self._function_kinds(name)
    if node.op in self._functions:
      result &= self._function_kinds(node.op)
    return result

  def _own_kinds(self, node: tf.compat.v1.NodeDef) -> frozenset[str]:
    if node.op in self._functions:
      return frozenset(KINDS)
    if node.op not in self._kernels:
      found = registry.get_registered_kernels_for_op(node.op).kernel
      self._kernels[node.op] = list(found)
    kernels = self._kernels[node.op]
    if not kernels:  # rewritten away before it runs, as `If` once was
      return frozenset(KINDS)
    op_def = op_defs.op_def_of(node, self._functions)
    types = {k.device_type for k in kernels if _matches(k, node, op_def)}
    return frozenset(KINDS if _DEFAULT in types else types.intersection(KINDS))

  def _function_kinds(self, name: str) -> frozenset[str]:
    if name not in self._functions:
      return frozenset(KINDS)
    if name not in self._bodies:
      self._bodies[name] = frozenset(KINDS)  # a recursive call adds nothing
      result = frozenset(KINDS)
      for node in self._functions[name].node_def:
        result &= self.kinds(node)
      self._bodies[name] = result
    return self._bodies[name]


def _matches(kernel: Any, node: tf.compat.v1.NodeDef, op_def: Any) -> bool:
  """Whether a kernel's label and type constraints allow the node."""
  label = node.attr["_kernel"].s.decode() if "_kernel" in node.attr else ""
  if kernel.label != label:
    return False
  for constraint in kernel.constraint:
    value = op_defs.attr_of(node, op_def, constraint.name)
    allowed = constraint.allowed_values.list.type
    if value is None:
      return False
    field = value.WhichOneof("value")
    types = [value.type] if field == "type" else list(value.list.type)
    if field == "placeholder" or not set(types) <= set(allowed):
      return False
  return True
