"""Device kinds with a kernel for an op, from TensorFlow's kernel registry.

Only the Linux pip build registers GPU kernels on every host, so
`gpu_kernels.json` holds its result. Renew it by `python -m
tests.extraction.test_extract_gpu_kernels`.
"""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import kernels as registry

from tfplace.extraction import nodes

# A kernel's label, and the name and allowed `DataType`s of each constrained
# attribute.
Registration: TypeAlias = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]

KINDS = ("CPU", "GPU")
_XLA_KINDS = ("XLA_CPU_JIT", "XLA_GPU_JIT")
_EVERY = frozenset(KINDS)
DEFAULT = "DEFAULT"
FILE = pathlib.Path(__file__).with_name("gpu_kernels.json")
_WITNESS = "MatMul"  # has a GPU kernel in every build with GPU support


@functools.cache
def is_needed() -> bool:
  """Returns whether this TensorFlow build lacks GPU kernels."""
  kernels = registry.get_registered_kernels_for_op(_WITNESS).kernel
  return not any(kernel.device_type == "GPU" for kernel in kernels)


@functools.cache
def shipped() -> dict[str, list[Registration]]:
  """Reads the registrations that a GPU serves, by op type, from the file."""
  content = json.loads(FILE.read_text(encoding="utf-8"))
  return {
    op: [
      (label, tuple((name, tuple(types)) for name, types in constraints))
      for label, constraints in rows
    ]
    for op, rows in content["kernels"].items()
  }


def registration(kernel: Any) -> Registration:
  """Returns the label and the constraints of a `KernelDef`."""
  constraints = sorted(
    (c.name, tuple(sorted(c.allowed_values.list.type)))
    for c in kernel.constraint
  )
  return kernel.label, tuple(constraints)


@functools.cache
def _xla_registrations(op: str) -> dict[str, list[Registration]]:
  """Returns the registrations by device type of XLA, for CPUs and GPUs."""
  _load_xla()
  rows: dict[str, list[Registration]] = {kind: [] for kind in _XLA_KINDS}
  for kernel in registry.get_registered_kernels_for_op(op).kernel:
    if kernel.device_type in rows:
      rows[kernel.device_type].append(registration(kernel))
  return rows


@functools.cache
def _load_xla() -> None:
  """Lets TensorFlow register XLA's kernels, which it does when it compiles."""
  add = tf.function(lambda x: x + 1, jit_compile=True, autograph=False)
  with tf.init_scope():
    add.experimental_get_compiler_ir(tf.TensorSpec(()))(stage="hlo")


def xla_compiles(node: nodes.NodeDef) -> bool:
  """Returns whether XLA has a kernel for an op, on CPUs and on GPUs."""
  return all(
    any(
      all(
        _allows(_types(node.attr[name]), types) for name, types in constraints
      )
      for _, constraints in rows
    )
    for rows in _xla_registrations(node.op).values()
  )


class KernelTable:
  """Device kinds of the nodes of one graph, cached by op and types."""

  def __init__(self, functions: Mapping[str, nodes.FunctionDef]) -> None:
    self._functions = functions
    # By op: the device type and registration of each kernel, and the attributes
    # that any kernel constrains.
    self._kernels: dict[str, list[tuple[str, Registration]]] = {}
    self._attributes: dict[str, tuple[str, ...]] = {}
    self._answers: dict[object, frozenset[str]] = {}
    self._bodies: dict[str, frozenset[str]] = {}

  def kinds(self, node: nodes.NodeDef) -> frozenset[str]:
    """Returns the kinds that can run the node; empty if none can.

    An op that calls functions needs a kind that can run every op of their
    bodies, because the bodies run on the op's device.
    """
    result = self._own_kinds(node)
    for name in nodes.called_functions(node):
      if name in self._functions:
        result &= self._function_kinds(name)
    return result

  def _own_kinds(self, node: nodes.NodeDef) -> frozenset[str]:
    if node.op in self._functions:
      return _EVERY
    if node.op not in self._kernels:
      self._load(node.op)
    if not self._kernels[node.op]:  # rewritten away before it runs
      return _EVERY
    label = ""
    if "_kernel" in node.attr:
      label = node.attr["_kernel"].s.decode(errors="replace")
    op_def = nodes.op_def_of(node, self._functions)
    types = {
      name: _types(nodes.attr_of(node, op_def, name))
      for name in self._attributes[node.op]
    }
    key = (node.op, label, *types.values())
    if key not in self._answers:
      kinds = {
        device
        for device, (kernel_label, constraints) in self._kernels[node.op]
        if kernel_label == label
        and all(_allows(types[name], allowed) for name, allowed in constraints)
      }
      self._answers[key] = _EVERY if DEFAULT in kinds else _EVERY & kinds
    return self._answers[key]

  def _load(self, op: str) -> None:
    kernels = [
      (kernel.device_type, registration(kernel))
      for kernel in registry.get_registered_kernels_for_op(op).kernel
    ]
    if kernels and is_needed():
      kernels += [("GPU", row) for row in shipped().get(op, ())]
    self._kernels[op] = kernels
    names = (name for _, (_, constraints) in kernels for name, _ in constraints)
    self._attributes[op] = tuple(dict.fromkeys(names))

  def _function_kinds(self, name: str) -> frozenset[str]:
    if name not in self._bodies:
      self._bodies[name] = _EVERY  # a recursive call adds no constraint
      result = _EVERY
      for node in self._functions[name].node_def:
        result &= self.kinds(node)
      self._bodies[name] = result
    return self._bodies[name]


def _types(value: Any) -> tuple[int, ...] | None:
  """Returns the types in an attribute; None if a function leaves them open."""
  field = None if value is None else value.WhichOneof("value")
  if field == "type":
    return (value.type,)
  return tuple(value.list.type) if field == "list" else None


def _allows(types: tuple[int, ...] | None, allowed: tuple[int, ...]) -> bool:
  return types is None or set(types).issubset(allowed)
