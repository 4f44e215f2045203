"""What the compiled search reads and writes: tables of a problem, the state of
one chain, and an order of ops that makes simulations fast. No searching here.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tfplace.core.op_graph import subgraph
from tfplace.placers.coarsen import Coarsening
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling.costs import ListTables, list_tables
from tfplace.simulate import engine


class SearchTables(NamedTuple):
  """A problem for the search; read-only, shared by all chains.

  Attributes:
    ops: the problem at the level of ops.
    group_offsets: [num_groups + 1]; group_ops: [num_ops] ops by group.
    allowed: [num_groups, num_devices] bool.
    movable: [?] groups that may be on more than one device.
    order: [num_groups] groups by time; position: its inverse.
    level_offsets: [num_levels + 1] into the units; level 0 is groups.
    unit_offsets: [num_units + 1]; unit_groups: [?] groups of each unit,
      all levels one after the other.
    unit_of: [num_levels, num_groups] unit of each group by level.
    odds: [num_units, num_devices] float64 how often a move of a unit
      goes to a device; see `_odds`.
    memory_bytes: [num_devices] capacities.
  """

  ops: ListTables
  group_offsets: np.ndarray
  group_ops: np.ndarray
  allowed: np.ndarray
  movable: np.ndarray
  order: np.ndarray
  position: np.ndarray
  level_offsets: np.ndarray
  unit_offsets: np.ndarray
  unit_groups: np.ndarray
  unit_of: np.ndarray
  odds: np.ndarray
  memory_bytes: np.ndarray

  @property
  def top_level(self) -> int:
    """The level of the largest units; 0 where there are groups only."""
    return len(self.level_offsets) - 2


class SearchState(NamedTuple):
  """One chain of the search.

  Attributes:
    rng: [1] uint64 state of its random numbers.
    numbers: [3] float64; see the constants below.
    counts: [5] int64; see the constants below.
    devices: [num_groups] int32 current devices.
    op_devices: [num_ops] int32 the same by op.
    best: [num_groups] int32 the best devices so far.
    moved: [num_groups] int32 groups of the move at hand.
    targets: [num_groups] int32 their new devices, then their old ones.
    is_marked: [num_groups] bool, all false between moves.
    start_us: [num_ops] float64 starts in the current step.
    by_start: [num_ops] int32 ops, sorted by start when traced.
    before: [num_ops] int32 the op that ran before on the same device.
    path: [num_ops] int32 the critical path, from its end, as last traced.
    cause: [num_ops] int32 for each op of `path`, why it did not start
      earlier; see `moves`.
  """

  rng: np.ndarray
  numbers: np.ndarray
  counts: np.ndarray
  devices: np.ndarray
  op_devices: np.ndarray
  best: np.ndarray
  moved: np.ndarray
  targets: np.ndarray
  is_marked: np.ndarray
  start_us: np.ndarray
  by_start: np.ndarray
  before: np.ndarray
  path: np.ndarray
  cause: np.ndarray


CURRENT = 0  # in `numbers`: objective of `devices`
BEST = 1  # step time of `best`, infinity without any
LEAST = 2  # objective of `best` as long as nothing fits

MOVED = 0  # in `counts`: entries of `moved`
EVALUATIONS = 1
PATH = 2  # entries of `path`
IS_STALE = 3  # the path belongs to an earlier state
IS_PART = 4  # of a unit, only what is on one device moves


def search_tables(groups: GroupGraph, found: Coarsening) -> SearchTables:
  """Packs a problem and the units of it that move as one."""
  group_offsets, group_ops = groups.problem.group_ops
  levels, unit_offsets, unit_groups = found.members()
  labels = [np.arange(groups.num_groups), *found.labels]
  position = np.empty(groups.num_groups, np.int32)
  position[groups.order] = np.arange(groups.num_groups)
  return SearchTables(
    ops=list_tables(groups),
    group_offsets=group_offsets,
    group_ops=group_ops,
    allowed=groups.allowed,
    movable=np.flatnonzero(groups.allowed.sum(axis=1) > 1).astype(np.int32),
    order=groups.order,
    position=position,
    level_offsets=levels,
    unit_offsets=unit_offsets,
    unit_groups=unit_groups,
    unit_of=np.stack(
      [label + first for label, first in zip(labels, levels, strict=False)]
    ).astype(np.int32),
    odds=_odds(groups, unit_offsets, unit_groups),
    memory_bytes=groups.problem.cluster.memory_bytes.astype(np.float64),
  )


def _odds(
  groups: GroupGraph, offsets: np.ndarray, members: np.ndarray
) -> np.ndarray:
  """[num_units, num_devices], by speed.

  A device on which a unit's work takes 100 times as long is proposed a
  hundredth as often: nearly all such moves are simulated in vain.
  """

  def sums(per_group: np.ndarray) -> np.ndarray:
    return np.add.reduceat(per_group[members], offsets[:-1], axis=0)

  like = _like(groups)
  kept = np.unique(like)  # devices that are alike have the same odds
  allowed, fastest = groups.allowed[:, kept], groups.fastest_us[:, None]
  least_us = 1e-3
  speed = sums(np.where(allowed, fastest, 0.0)) + least_us
  speed /= sums(np.where(allowed, groups.time_us[:, kept], 0.0)) + least_us
  return np.ascontiguousarray(speed[:, np.searchsorted(kept, like)])


def _like(groups: GroupGraph) -> np.ndarray:
  """[num_devices] the first device that runs every group as long as each."""
  allowed, time_us = groups.allowed, groups.time_us
  like: list[int] = []
  for device in range(groups.num_devices):
    same = (
      other
      for other in dict.fromkeys(like)
      if np.array_equal(allowed[:, other], allowed[:, device])
      and np.array_equal(time_us[:, other], time_us[:, device], equal_nan=True)
    )
    like.append(next(same, device))
  return np.array(like)


def search_state(
  groups: GroupGraph, devices: np.ndarray, seed: np.random.SeedSequence
) -> SearchState:
  """A chain at a start; `Chain.restart` must come next."""
  num_ops, num_groups = groups.problem.graph.num_ops, groups.num_groups
  rng = seed.generate_state(1, np.uint64) | np.uint64(1)  # never 0
  return SearchState(
    rng=rng,
    numbers=np.full(3, np.inf),
    counts=np.zeros(5, np.int64),
    devices=devices.astype(np.int32),
    op_devices=groups.expand(devices),
    best=devices.astype(np.int32),
    moved=np.zeros(num_groups, np.int32),
    targets=np.zeros(num_groups, np.int32),
    is_marked=np.zeros(num_groups, np.bool_),
    start_us=np.zeros(num_ops),
    by_start=np.arange(num_ops, dtype=np.int32),
    before=np.zeros(num_ops, np.int32),
    path=np.zeros(num_ops, np.int32),
    cause=np.zeros(num_ops, np.int32),
  )


@dataclasses.dataclass(frozen=True, eq=False)
class TimeOrder:
  """A problem with its ops numbered by when they start, and the way back.

  Attributes:
    groups: the renumbered problem's groups.
    position: [num_ops] position that each renumbered op had.
    group_at: [num_groups] renumbered group of each group.
  """

  groups: GroupGraph
  position: np.ndarray
  group_at: np.ndarray

  def enter(self, devices: np.ndarray) -> np.ndarray:
    """[num_groups] devices of the problem -> of the renumbered one."""
    result = np.empty_like(devices)
    result[self.group_at] = devices
    return result

  def leave(self, devices: np.ndarray) -> np.ndarray:
    """[num_groups] devices of the renumbered problem -> of the problem."""
    return devices[self.group_at]


def time_order(
  groups: GroupGraph, devices: np.ndarray | None = None
) -> TimeOrder:
  """Renumbers ops by their start, ties by position.

  Ops that run after each other then lie beside each other in memory, and a
  simulation of 54,019 ops takes 0.6 to 0.8 of the time. The engine is told the
  positions that the rules speak of, so that what is simulated stays the same.

  Args:
    groups: of the problem.
    devices: [num_groups] the placement whose starts count; None is the
      earliest starts, communication free (ASAP).
  """
  problem = groups.problem
  start_us = groups.op_start_us
  if devices is not None:
    tables = engine.pack(problem)
    work = engine.workspace(tables)
    if engine.simulate(tables, groups.expand(devices), work, np.inf) < np.inf:
      start_us = work.ops.time[: tables.num_ops]
  order = np.argsort(start_us, kind="stable")
  graph = subgraph(problem.graph, order)
  inner = dataclasses.replace(problem, graph=graph)
  group_at = np.empty(groups.num_groups, np.int64)
  group_at[problem.group_of[order]] = inner.group_of
  return TimeOrder(GroupGraph(inner), order, group_at)
