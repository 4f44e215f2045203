"""The graph of groups, which placers assign to devices."""

import dataclasses
import functools
import re
from typing import Any

import numpy as np

from tfplace.graph.csr import all_of_group, csr, group_sums
from tfplace.graph.op_names import UNKNOWN
from tfplace.graph.paths import transfers
from tfplace.graph.problem import Problem

_OF_VARIABLE = re.compile(r"Var|ReadVariable|Assign|Resource|Identity")


@dataclasses.dataclass(frozen=True, eq=False)
class GroupGraph:
  """Groups of a problem, their costs and their neighbors."""

  problem: Problem

  @classmethod
  def of(cls, problem: Problem) -> "GroupGraph":
    """Returns the groups; those of another order pass on what they derived."""
    memo = problem.memo
    if (cls, problem.key) not in memo:
      groups = cls(problem)
      like = memo.setdefault((cls, problem.off_cpu_key), groups)
      derived = {**like.__dict__, "memo": like.memo, "problem": problem}
      groups.__dict__.update(derived)
      memo[cls, problem.key] = groups
    return memo[cls, problem.key]

  @functools.cached_property
  def memo(self) -> dict[Any, Any]:
    """Values that placers derive from the groups, in any order."""
    return {}

  @property
  def num_groups(self) -> int:
    return self.problem.num_groups

  @property
  def num_devices(self) -> int:
    return self.problem.cluster.num_devices

  @functools.cached_property
  def allowed(self) -> np.ndarray:
    """[num_groups, num_devices] bool."""
    return self.problem.group_allowed

  @functools.cached_property
  def time_us(self) -> np.ndarray:
    """[num_groups, num_devices] float64 with overhead; inf if not allowed."""
    return np.where(self.allowed, self._total_us, np.inf)

  @functools.cached_property
  def _total_us(self) -> np.ndarray:
    """[num_groups, num_devices] float64 with overhead, of ops with a kernel."""
    problem = self.problem
    op_us = problem.time_us + np.where(
      problem.time_us > 0, problem.cluster.op_overhead_us, 0.0
    )
    return group_sums(problem.group_of, np.nan_to_num(op_us), self.num_groups)

  @functools.cached_property
  def fastest_us(self) -> np.ndarray:
    """[num_groups] float64 minimum of `time_us`."""
    return self.time_us.min(axis=1)

  @functools.cached_property
  def possible_us(self) -> np.ndarray:
    """[num_groups, num_devices] float64 with overhead, allowed or not.

    A group that a device has no kernels for counts with its fastest time.
    """
    problem, elsewhere = self.problem, self.fastest_us[:, np.newaxis]
    runs = all_of_group(problem.group_of, problem.has_kernel, self.num_groups)
    return np.where(runs, self._total_us, elsewhere)

  def nearest(self, wanted: np.ndarray) -> np.ndarray:
    """Returns [num_groups] wanted devices, or the fastest if not allowed."""
    here = self.allowed[np.arange(self.num_groups), wanted]
    return np.where(here, wanted, self.time_us.argmin(axis=1)).astype(np.int32)

  @functools.cached_property
  def persistent_bytes(self) -> np.ndarray:
    """[num_groups] float64 bytes held for the whole step."""
    return self._sum(self.problem.graph.persistent_bytes)

  @functools.cached_property
  def total_bytes(self) -> np.ndarray:
    """[num_groups] float64 persistent bytes and all outputs."""
    return self.persistent_bytes + self._sum(self.problem.graph.op_output_bytes)

  def _sum(self, per_op: np.ndarray) -> np.ndarray:
    return np.bincount(self.problem.group_of, per_op, self.num_groups)

  @functools.cached_property
  def edges(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, destination and bytes of connected groups, [num_pairs] each.

    An output with several readers in the destination counts once.
    """
    graph, group_of = self.problem.graph, self.problem.group_of
    src, dst = group_of[graph.edge_src], group_of[graph.edge_dst]
    across, _ = transfers(graph, group_of)
    src, dst, size = unique_pairs(
      src[across], dst[across], graph.edge_bytes[across], self.num_groups
    )
    return src.astype(np.int32), dst.astype(np.int32), size

  @functools.cached_property
  def neighbors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Undirected adjacency: offsets, groups, bytes.

    Each pair has an entry in both directions. The entry is the neighbor's
    number where the group sends, and -1 - number where it receives.
    """
    src, dst, size = self.edges
    ends = np.concatenate((src, dst))
    entry = np.concatenate((dst, -1 - src))
    offsets, order = csr(ends, self.num_groups)
    return (
      offsets,
      entry[order].astype(np.int32),
      np.concatenate((size, size))[order],
    )

  @property
  def op_start_us(self) -> np.ndarray:
    """[num_ops] float64 earliest starts (ASAP), communication free.

    Ops without inputs start as late as their first consumer allows.
    """
    return self.problem.starts[0]

  @functools.cached_property
  def order(self) -> np.ndarray:
    """[num_groups] int32 groups by the earliest start of their first op.

    The first op is the first that takes time, if there is one. Ops without
    inputs go with their first consumer. Ties go by position.
    """
    start, beside = self.problem.starts
    group_of, idle = self.problem.group_of, self.problem.fastest_us <= 0
    by_start = np.lexsort((np.arange(len(start)), beside, start))
    # Find the first op of each group, ops of nonzero time first.
    ranked = by_start[np.argsort(idle[by_start], kind="stable")]
    _, first = np.unique(group_of[ranked], return_index=True)
    rank = np.empty(len(start), np.int64)
    rank[by_start] = np.arange(len(start))
    return np.argsort(rank[ranked[first]], kind="stable").astype(np.int32)

  @functools.cached_property
  def position(self) -> np.ndarray:
    """[num_groups] int32 inverse of `order`."""
    position = np.empty(self.num_groups, np.int32)
    position[self.order] = np.arange(self.num_groups, dtype=np.int32)
    return position

  @functools.cached_property
  def first_readers(self) -> np.ndarray:
    """[num_groups] group that reads a variable first; -1 for other groups.

    A variable is a group with persistent bytes whose ops take no time or only
    read and update it.
    """
    problem, graph = self.problem, self.problem.graph
    computes = [_OF_VARIABLE.match(kind) is None for kind in graph.types]
    is_busy = (problem.fastest_us > 0) & np.array(computes, bool)
    is_variable = self.persistent_bytes > 0
    is_variable[problem.group_of[is_busy]] = False
    src = problem.group_of[graph.edge_src]
    dst = problem.group_of[graph.edge_dst]
    edges = np.flatnonzero(is_variable[src] & ~is_variable[dst])
    start, position = problem.starts[0], graph.topological_position
    readers = graph.edge_dst[edges]
    ranked = edges[np.lexsort((position[readers], start[readers], src[edges]))]
    variables, first = np.unique(src[ranked], return_index=True)
    result = np.full(self.num_groups, -1)
    result[variables] = dst[ranked[first]]
    return result

  def beside_readers(self, devices: np.ndarray) -> np.ndarray:
    """Moves variables to their first readers, where allowed and there is room.

    Args:
      devices: [num_groups] allowed devices.

    Returns:
      [num_groups] int32 devices.
    """
    result, held = devices.astype(np.int32), self.persistent_bytes
    room = self.problem.cluster.memory_bytes.copy()
    np.subtract.at(room, result, held)
    for group in np.flatnonzero(self.first_readers >= 0).tolist():
      target, here = result[self.first_readers[group]], result[group]
      if self.allowed[group, target] and held[group] <= room[target]:
        room[here] += held[group]
        room[target] -= held[group]
        result[group] = target
    return result

  def expand(self, group_devices: np.ndarray) -> np.ndarray:
    """Converts [num_groups] devices to [num_ops] devices."""
    return np.ascontiguousarray(
      group_devices[self.problem.group_of], dtype=np.int32
    )

  def majority(self, values: np.ndarray) -> np.ndarray:
    """Returns [num_groups] values that most of each group's time has.

    Ops of zero time count a little. [num_ops] `values` are at least 0, or
    UNKNOWN for ops that do not count; a group without a value is UNKNOWN.
    """
    known = values != UNKNOWN
    votes = np.zeros((self.num_groups, int(values.max(initial=0)) + 1))
    weight = self.problem.fastest_us[known] + 1e-6
    np.add.at(votes, (self.problem.group_of[known], values[known]), weight)
    return np.where(votes.any(axis=1), votes.argmax(axis=1), UNKNOWN)

  @functools.cached_property
  def first_ops(self) -> np.ndarray:
    """[num_groups] first op of each group."""
    offsets, ops = self.problem.group_ops
    return ops[offsets[:-1]]

  def contract(self, devices: np.ndarray) -> np.ndarray:
    """Converts [num_ops] devices of an allowed placement to [num_groups]."""
    return np.ascontiguousarray(devices[self.first_ops], dtype=np.int32)


def unique_pairs(
  first: np.ndarray, second: np.ndarray, weight: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Merges equal pairs of numbers below `count`.

  Returns:
    [num_pairs] int64 first and second numbers, in order, and float64 sums of
    the weights.
  """
  keys = first.astype(np.int64) * count + second
  pairs, inverse = np.unique(keys, return_inverse=True)
  total = np.bincount(inverse, weight, len(pairs))
  return pairs // count, pairs % count, total


def main_devices(groups: GroupGraph) -> np.ndarray:
  """Returns the devices of the kind that would finish all work first.

  Groups that a kind cannot run count with their fastest time elsewhere.
  """
  cluster = groups.problem.cluster
  kinds = [device.kind for device in cluster.devices]
  work = groups.possible_us.sum(axis=0)
  runs = groups.allowed.sum(axis=0)
  best = min(
    range(len(kinds)), key=lambda d: (work[d] / kinds.count(kinds[d]), -runs[d])
  )
  return np.array([i for i, kind in enumerate(kinds) if kind == kinds[best]])


def working_devices(groups: GroupGraph) -> np.ndarray:
  """Returns the main devices and those of other kinds, the fastest first.

  CPUs do not work beside other devices. Equal devices keep their order.
  """
  devices = groups.problem.cluster.devices
  is_cpu = devices[int(main_devices(groups)[0])].is_cpu
  alike = np.array([i for i, d in enumerate(devices) if d.is_cpu == is_cpu])
  work = groups.possible_us.sum(axis=0)[alike]
  return alike[np.argsort(work, kind="stable")]


def equal_blocks(groups: GroupGraph, order: np.ndarray) -> np.ndarray:
  """Cuts an order of the groups into blocks of equal time, one per device.

  Devices are filled in the [num_groups] `order`. Returns [num_groups] int32
  devices.
  """
  devices = main_devices(groups)
  work = np.empty(groups.num_groups)
  work[order] = np.cumsum(groups.fastest_us[order])
  total = max(float(groups.fastest_us.sum()), 1e-300)
  # Use the middle of a group's work, which puts a long group where most of it
  # lies.
  middle = (work - groups.fastest_us / 2) / total
  # Groups of zero time belong to the block before them.
  block = np.ceil(middle * len(devices) - 1e-9).astype(int) - 1
  block = np.clip(block, 0, len(devices) - 1)
  return groups.nearest(devices[block])
