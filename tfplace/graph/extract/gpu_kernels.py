"""GPU kernels for builds of TensorFlow that register none.

TensorFlow's pip build for Linux registers its GPU kernels on every host; the
builds for macOS, Windows and CPUs alone do not, and yet someone may plan there
for a cluster with GPUs. `gpu_kernels.json` holds what `collect` found in the
Linux x86-64 build of the version that it names; a test compares the two.
To renew it: `python -c "from tfplace.graph.extract import gpu_kernels as g;
g.write()"`.
"""

import functools
import json
import pathlib
from collections.abc import Iterable
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import kernels as registry

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
