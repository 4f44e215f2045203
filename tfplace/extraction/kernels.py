"""Which kinds of device have a kernel for an op, by TensorFlow's registry.

A `DEFAULT` kernel serves every kind. An int32 kernel that keeps its tensors in
host memory counts as its device's. XLA's pseudo devices do not count.

TensorFlow's pip build for Linux registers its GPU kernels on every host; the
builds for macOS, Windows and CPUs alone do not, and yet someone may plan there
for a cluster with GPUs. `gpu_kernels.json` holds what `collect` found in the
Linux x86-64 build of the version that it names; a test compares the two. To
renew it: `python -c "from tfplace.extraction import kernels; kernels.write()"`.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import kernels as registry

from tfplace.extraction import nodes

# Label, and per constrained attribute its name and allowed `DataType`s.
Registration: TypeAlias = tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]

_FILE = pathlib.Path(__file__).with_name("gpu_kernels.json")
_WITNESS = "MatMul"  # has a GPU kernel in every build with GPUs


@functools.cache
def is_needed() -> bool:
  """Whether this TensorFlow has no GPU kernels of its own."""
  found = registry.get_registered_kernels_for_op(_WITNESS).kernel
  return not any(kernel.device_type == "GPU" for kernel in found)


@functools.cache
def shipped() -> dict[str, list[Registration]]:
  """Op type -> registrations that a GPU serves, from the file."""
  content = json.loads(_FILE.read_text(encoding="utf-8"))
  return {
    op: [_from_json(row) for row in rows]
    for op, rows in content["kernels"].items()
  }


def _from_json(row: Any) -> Registration:
  label, constraints = row
  return label, tuple((name, tuple(types)) for name, types in constraints)


def collect() -> dict[str, list[Registration]]:
  """The same of this TensorFlow, which must have GPU kernels."""
  found: dict[str, set[Registration]] = {}
  for kernel in registry.get_all_registered_kernels().kernel:
    if kernel.device_type in ("GPU", "DEFAULT"):
      constraints = sorted(
        (c.name, tuple(sorted(c.allowed_values.list.type)))
        for c in kernel.constraint
      )
      rows = found.setdefault(kernel.op, set())
      rows.add((kernel.label, tuple(constraints)))
  return {op: _merged(rows) for op, rows in sorted(found.items())}


def write() -> None:
  """Renews the file."""
  content = {"tensorflow": tf.__version__, "kernels": collect()}
  _FILE.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def _merged(rows: Iterable[Registration]) -> list[Registration]:
  """Joins registrations that differ in the types of one attribute only."""
  result = sorted(rows)
  at = 0
  while at < len(result):
    for other in range(at + 1, len(result)):
      joined = _join(result[at], result[other])
      if joined is not None:
        del result[other], result[at]
        result = sorted({*result, joined})
        at = -1
        break
    at += 1
  return result


def _join(a: Registration, b: Registration) -> Registration | None:
  names = [[name for name, _ in row[1]] for row in (a, b)]
  if a[0] != b[0] or names[0] != names[1]:
    return None
  pairs = zip(a[1], b[1], strict=True)
  differing = [i for i, (x, y) in enumerate(pairs) if x != y]
  if len(differing) > 1:
    return None
  constraints = list(a[1])
  for i in differing:
    types = {*a[1][i][1], *b[1][i][1]}
    constraints[i] = (a[1][i][0], tuple(sorted(types)))
  return a[0], tuple(constraints)


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

  def __init__(self, functions: Mapping[str, nodes.FunctionDef]) -> None:
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
    for name in nodes.called_functions(node):
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
    op_def = nodes.op_def_of(node, self._functions)
    types = tuple(
      _types(nodes.attr_of(node, op_def, name))
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
    if kernels and is_needed():
      kernels += [
        _Kernel("GPU", label, tuple((n, frozenset(t)) for n, t in allowed))
        for label, allowed in shipped().get(op, ())
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
