"""Which kinds of device have a kernel for an op, by TensorFlow's registry.

The pip build of TensorFlow for Linux registers its GPU kernels on hosts
without a GPU too; for other builds `gpu_kernels` has a table. A `DEFAULT`
kernel serves every kind. An int32 kernel that keeps its tensors in host memory
counts as its device's. XLA's pseudo devices do not count.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import kernels as registry

from tfplace.graph.extract import gpu_kernels, op_defs

KINDS = ("CPU", "GPU")
_DEFAULT = "DEFAULT"


@dataclasses.dataclass(frozen=True)
class _Kernel:
  """One registration: device type, label, and allowed types by attribute."""

  device_type: str
  label: str
  allowed: tuple[tuple[str, frozenset[int]], ...]


class KernelTable:
  """Answers `kinds` for the nodes of one graph; remembers by op and types."""

  def __init__(self, functions: Mapping[str, op_defs.FunctionDef]) -> None:
    self._functions = functions
    self._kernels: dict[str, tuple[_Kernel, ...]] = {}
    self._attributes: dict[str, tuple[str, ...]] = {}
    self._answers: dict[object, frozenset[str]] = {}
    self._bodies: dict[str, frozenset[str]] = {}

  def kinds(self, node: tf.compat.v1.NodeDef) -> frozenset[str]:
    """Kinds that can run the node; empty where nothing can.

    An op that calls functions runs where every op of their bodies runs, since
    its body is placed on its device.
    """
    result = self._own_kinds(node)
    for name in op_defs.called_functions(node):
      if name in self._functions:
        result &= self._function_kinds(name)
    return result

  def _own_kinds(self, node: tf.compat.v1.NodeDef) -> frozenset[str]:
    if node.op in self._functions:
      return frozenset(KINDS)
    if node.op not in self._kernels:
      self._load(node.op)
    kernels = self._kernels[node.op]
    if not kernels:  # rewritten away before it runs
      return frozenset(KINDS)
    label = ""
    if "_kernel" in node.attr:
      label = node.attr["_kernel"].s.decode(errors="replace")
    op_def = op_defs.op_def_of(node, self._functions)
    types = tuple(
      _types(op_defs.attr_of(node, op_def, name))
      for name in self._attributes[node.op]
    )
    key = (node.op, label, types)
    if key not in self._answers:
      by_name = dict(zip(self._attributes[node.op], types, strict=True))
      self._answers[key] = _match(kernels, label, by_name)
    return self._answers[key]

  def _load(self, op: str) -> None:
    kernels = [
      _Kernel(
        k.device_type,
        k.label,
        tuple(
          (c.name, frozenset(c.allowed_values.list.type)) for c in k.constraint
        ),
      )
      for k in registry.get_registered_kernels_for_op(op).kernel
    ]
    if kernels and gpu_kernels.is_needed():
      kernels += [
        _Kernel("GPU", label, tuple((n, frozenset(t)) for n, t in allowed))
        for label, allowed in gpu_kernels.shipped().get(op, ())
      ]
    self._kernels[op] = tuple(kernels)
    names = (name for k in kernels for name, _ in k.allowed)
    self._attributes[op] = tuple(dict.fromkeys(names))

  def _function_kinds(self, name: str) -> frozenset[str]:
    if name not in self._bodies:
      self._bodies[name] = frozenset(KINDS)  # a recursive call adds nothing
      result = frozenset(KINDS)
      for node in self._functions[name].node_def:
        result &= self.kinds(node)
      self._bodies[name] = result
    return self._bodies[name]


def _types(value: Any) -> tuple[int, ...] | None:
  """Types in an attribute; None where a function leaves them open."""
  field = None if value is None else value.WhichOneof("value")
  if field == "type":
    return (value.type,)
  return tuple(value.list.type) if field == "list" else None


def _match(
  kernels: Sequence[_Kernel],
  label: str,
  types: Mapping[str, tuple[int, ...] | None],
) -> frozenset[str]:
  """Kinds of the kernels whose label and constraints allow the types."""
  found = {
    k.device_type
    for k in kernels
    if k.label == label
    and all(_allows(types[name], allowed) for name, allowed in k.allowed)
  }
  return frozenset(KINDS if _DEFAULT in found else found.intersection(KINDS))


def _allows(types: tuple[int, ...] | None, allowed: frozenset[int]) -> bool:
  return types is None or allowed.issuperset(types)
