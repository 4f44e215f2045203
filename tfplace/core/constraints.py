"""User constraints: memory limits and ops that must share a device.

Memory limits such as `{"GPU:0": "10GiB"}` override the memory sizes of a
cluster. Ops that must share a device become a colocation group, which every
placer, the simulator and the file formats already support.
"""

import collections
import contextlib
import dataclasses
import fnmatch
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tfplace.core.cluster import Cluster
from tfplace.core.op_graph import OpGraph
from tfplace.core.paths import DisjointSets
from tfplace.errors import FormatError, shown

_UNITS = {
  "": 1,
  "B": 1,
  **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
  **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


_SIZES = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))


def with_max_memory(
  cluster: Cluster, limits: Mapping[str, str | float]
) -> Cluster:
  """Returns a copy of the cluster with other memory sizes.

  Args:
    cluster: devices that `limits` does not name keep their size.
    limits: device -> bytes, or a size with a unit: "10GiB" is 10 * 2**30 bytes,
      "10GB" is 10**10. A device of size 0 holds nothing. A device is named in
      full, or by a suffix that only it has, such as "GPU:0".

  Raises:
    FormatError: a device is unknown, ambiguous or named twice, or a size is
      invalid; names it.
  """
  memory: dict[str, float] = {}
  for name, size in limits.items():
    device = find_device(cluster, name)
    if device in memory:
      raise FormatError(
        f"device {device!r} is given two memory sizes, one of them by the name"
        f" {shown(name)}; give it one",
        device=device,
      )
    memory[device] = num_bytes(size)
  devices = tuple(
    dataclasses.replace(d, memory_bytes=memory.get(d.name, d.memory_bytes))
    for d in cluster.devices
  )
  return dataclasses.replace(cluster, devices=devices)


def find_device(cluster: Cluster, name: str) -> str:
  """Resolves a device name or unique suffix; raises FormatError otherwise."""
  names = [device.name for device in cluster.devices]
  if name in names:
    return name
  end = name if str(name).startswith("/") else f"/device:{name}"
  found = [full for full in names if full.endswith(end)]
  if len(found) != 1:
    raise FormatError(
      f"{shown(name)} names {len(found) or 'no'}"
      f" device{'s' * (len(found) != 1)} of cluster {cluster.name!r}; it has"
      f" {', '.join(names)}",
      device=str(name),
    )
  return found[0]


def num_bytes(size: str | float) -> float:
  """Parses a number of bytes, such as 4096, "10GiB" or "1.5 GB".

  Raises:
    FormatError: the size or its unit is invalid. Lower-case units are rejected
      because they may mean bits.
  """
  if isinstance(size, str):
    match = _SIZE.fullmatch(size.strip())
    if match and match[2] in _UNITS:
      return float(match[1]) * _UNITS[match[2]]
  elif isinstance(size, numbers.Real) and not isinstance(size, bool):
    with contextlib.suppress(OverflowError):
      if size >= 0:
        return float(size)
  raise FormatError(
    f"{shown(size)} is no memory size; write bytes, or a number and one of"
    f" {', '.join(u for u in _UNITS if u)}"
  )


def format_bytes(num_bytes: float) -> str:
  """Formats bytes with three significant digits: 3 * 2**30 -> "3 GiB"."""
  return in_units(num_bytes, _SIZES)


def exact_bytes(num_bytes: float) -> str:
  """Formats bytes twice: 3 * 2**30 -> "3 GiB (3221225472 bytes)"."""
  count = math.ceil(num_bytes)
  exact = f"{count} byte{'s' * (count != 1)}"
  return exact if num_bytes < 1024 else f"{format_bytes(num_bytes)} ({exact})"


def in_units(value: float, units: Sequence[tuple[float, str]]) -> str:
  """Formats a finite value with three digits in the largest fitting unit.

  Args:
    value: a finite number.
    units: (size, name) of each unit, largest first; the last size is 1.
  """
  for scale, unit in units:
    # Compare the rounded value: 999.9 us is "1 ms", not "1e+03 us".
    if float(f"{value / scale:.3g}") >= 1 or scale == 1.0:
      digits = f"{value / scale:.3g}"
      return (
        f"{float(digits):g} {unit}" if "e" in digits else f"{digits} {unit}"
      )
  raise AssertionError("the last unit is 1")


def keep_together(graph: OpGraph, groups: Iterable[Sequence[int]]) -> OpGraph:
  """Returns a copy of the graph in which each group shares a device.

  Groups are lists of op positions. Groups that share an op, and existing
  colocation groups that they touch, are merged.
  """
  sets = DisjointSets(graph.num_ops)
  first: dict[int, int] = {}  # The first op of each existing colocation group.
  for op, group in enumerate(graph.colocation.tolist()):
    if group >= 0:
      sets.union(first.setdefault(group, op), op)
  for ops in groups:
    for op in ops:
      sets.union(ops[0], op)
  roots = sets.roots().tolist()
  sizes = collections.Counter(roots)
  shared = [root for root, size in sizes.items() if size > 1]
  number = {root: i for i, root in enumerate(shared)}
  return dataclasses.replace(
    graph,
    colocation=np.array([number.get(root, -1) for root in roots], np.int32),
    colocation_names=tuple(graph.names[root] for root in shared),
  )


def matching(graph: OpGraph, pattern: str) -> list[int]:
  """Returns the positions of ops whose name or scope matches a pattern.

  Args:
    graph: graph to search.
    pattern: shell-style pattern: `*` matches any text, `?` one character.
      "encoder" and "encoder/*" both match all ops in that scope.

  Raises:
    FormatError: no op matches.
  """
  found = [
    i
    for i, name in enumerate(graph.names)
    if fnmatch.fnmatchcase(name, pattern)
    or fnmatch.fnmatchcase(name, f"{pattern}/*")
  ]
  if not found:
    raise FormatError(
      f"{pattern!r} is like the name of no op of graph {graph.name!r}, whose"
      f" ops have names such as {', '.join(map(repr, graph.names[:3]))}"
    )
  return found
