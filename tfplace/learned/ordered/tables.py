"""Problem tables for decisions in order of earliest starts (NumPy only)."""

from typing import NamedTuple

import numpy as np

from tfplace.graph.csr import csr
from tfplace.learned.decisions import Decisions
from tfplace.learned.ordered.base_schedule import (
  NUM_FEATURES,
  OpTables,
  Simulated,
  describe,
)
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.list_scheduling.costs import list_tables
from tfplace.placers.list_scheduling.placers import held_bytes
from tfplace.simulate.links import mean_transfer

_LEAST_US = 1e-9
_NO_LINK_US = 1e12  # Replaces infinity, whose differences are NaN.


class PartialTables(NamedTuple):
  """Problem and decisions in array form: N decisions, D devices.

  Attributes:
    order: [num_ops] ops in scheduling order, producers first.
    decision_of: [num_ops] int32.
    op_us: [num_ops, D] float64; infinite where not allowed.
    overhead_us: [D] float64.
    links: [D, D] records, see `links.LINK`.
    in_offsets, in_src, in_bytes: Edges by consumer, see `ListTables`.
    allowed: [N, D] bool.
    work_us: [N, D] float64 with overhead; 0 where not allowed.
    fastest_us: [N] float64 minimum of `work_us` over allowed devices.
    near_offsets, near, near_us: Adjacency of the decisions. An entry is the
      decision that receives, or -1 - number of the one that sends; with the
      transfer time on a mean link.
    persistent_bytes, held_bytes: [N] float64; the second includes outputs.
    memory_bytes: [D] float64.
    layer, micro, pair: [N] int64 layer, microbatch, and combination of both.
    groups: [3] int64 numbers of layers, microbatches and pairs.
    position: [N] float64 fraction of the work before the first op, 0 to 1.
    slower: [D] float64 log of the time of all work relative to the fastest
      device.
    base: [N] int32 choices that keep the base placement, -1 for none.
    base_shares: [N, D] float64 work shares of each decision in the base.
    base_loads: [D] float64 relative load of the base beyond an even share.
    scheduled: [N, D, NUM_FEATURES] float32, see `base_schedule`; 0 without a
      base.
    ideal_us: Work of each main device if evenly shared.
    mean_us: Mean work of a decision.
  """

  order: np.ndarray
  decision_of: np.ndarray
  op_us: np.ndarray
  overhead_us: np.ndarray
  links: np.ndarray
  in_offsets: np.ndarray
  in_src: np.ndarray
  in_bytes: np.ndarray
  allowed: np.ndarray
  work_us: np.ndarray
  fastest_us: np.ndarray
  near_offsets: np.ndarray
  near: np.ndarray
  near_us: np.ndarray
  persistent_bytes: np.ndarray
  held_bytes: np.ndarray
  memory_bytes: np.ndarray
  layer: np.ndarray
  micro: np.ndarray
  pair: np.ndarray
  groups: np.ndarray
  position: np.ndarray
  slower: np.ndarray
  base: np.ndarray
  base_shares: np.ndarray
  base_loads: np.ndarray
  scheduled: np.ndarray
  ideal_us: float
  mean_us: float


def partial_tables(decisions: Decisions) -> PartialTables:
  """Packs a problem for the decoder."""
  if decisions.base is None:
    return _without_base(decisions)
  return BaseTables(decisions).based_on(decisions.base)[1]


class BaseTables:
  """Tables of one problem for one base after the other.

  Args:
    decisions: Their base does not matter.
    simulated: Schedules of the problem, from the tables of other decisions.

  Attributes:
    plain: Tables without a base.
    simulated: Schedules of the problem.
  """

  def __init__(
    self, decisions: Decisions, simulated: Simulated | None = None
  ) -> None:
    self._decisions = decisions.based_on(None)
    self.plain = plain = _without_base(self._decisions)
    problem = decisions.problem
    ops = OpTables(*(getattr(plain, name) for name in OpTables._fields))
    # A base can have an op where not all ops of its decision can run.
    op_us = np.where(problem.allowed, problem.time_us, np.inf)
    self._ops = ops._replace(op_us=op_us)
    self.simulated = simulated or Simulated(problem, self._ops)

  def based_on(self, base: np.ndarray) -> tuple[Decisions, PartialTables]:
    """Bases decisions and tables on [num_ops] devices."""
    decisions = self._decisions.based_on(base)
    plain, shares = self.plain, decisions.base_shares
    schedule = self.simulated.schedule(base)
    tables = plain._replace(
      base=decisions.base_choices,
      base_shares=shares,
      base_loads=(shares * plain.work_us).sum(axis=0) / plain.ideal_us - 1.0,
      scheduled=describe(self._ops, schedule, len(shares)),
    )
    return decisions, tables


def _without_base(decisions: Decisions) -> PartialTables:
  problem = decisions.as_groups
  groups = GroupGraph.of(problem)
  # The groups of `problem` are the decisions, in another order.
  group = np.empty(groups.num_groups, np.int64)
  group[decisions.decision_of] = problem.group_of
  tables = list_tables(groups)
  work_us = np.where(groups.allowed, groups.time_us, 0.0)[group]
  near_offsets, near, near_us = _neighbors(groups, group)
  order = np.lexsort(
    (problem.graph.topological_position, groups.op_start_us)
  ).astype(np.int64)
  layer, micro, pair = _labels(decisions)
  fastest_us = groups.fastest_us[group]
  main = main_devices(groups)
  whole_us = np.where(
    groups.allowed, groups.time_us, groups.fastest_us[:, None]
  )
  on_us = np.maximum(whole_us.sum(axis=0), _LEAST_US)
  ideal_us = max(float(fastest_us.sum()) / len(main), _LEAST_US)
  links = tables.links.copy()
  links["delay_us"] = np.minimum(links["delay_us"], _NO_LINK_US)
  return PartialTables(
    order=order,
    decision_of=decisions.decision_of,
    op_us=tables.time_us,
    overhead_us=tables.overhead_us,
    links=links,
    in_offsets=tables.in_offsets,
    in_src=tables.in_src,
    in_bytes=tables.in_bytes,
    allowed=np.ascontiguousarray(groups.allowed[group]),
    work_us=work_us,
    fastest_us=fastest_us,
    near_offsets=near_offsets,
    near=near,
    near_us=near_us,
    persistent_bytes=groups.persistent_bytes[group],
    held_bytes=held_bytes(groups)[group],
    memory_bytes=problem.cluster.memory_bytes.astype(np.float64),
    layer=layer,
    micro=micro,
    pair=pair,
    groups=np.array([a.max(initial=-1) + 1 for a in (layer, micro, pair)]),
    position=_positions(decisions, order),
    slower=np.log(on_us / on_us.min()),
    base=decisions.base_choices,
    base_shares=decisions.base_shares,
    base_loads=np.zeros(work_us.shape[1]),
    scheduled=np.zeros((*work_us.shape, NUM_FEATURES), np.float32),
    ideal_us=ideal_us,
    mean_us=max(float(fastest_us.sum()) / max(1, len(fastest_us)), _LEAST_US),
  )


def _neighbors(
  groups: GroupGraph, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  number = np.empty(len(group), np.int64)
  number[group] = np.arange(len(group))
  src, dst, size = groups.edges
  us_per_byte, fixed_us = mean_transfer(groups.problem.cluster, with_gap=True)
  src, dst = number[src], number[dst]
  ends = np.concatenate((src, dst))
  entry = np.concatenate((dst, -1 - src))
  offsets, order = csr(ends, len(group))
  us = fixed_us + np.concatenate((size, size)) * us_per_byte
  return offsets, entry[order], us[order]


def _labels(
  decisions: Decisions,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the labels of each decision's longest labeled op.

  If most layers are unknown, name scopes replace them.
  """
  graph = decisions.problem.graph
  layer = _of_longest(decisions, graph.layer)
  if (layer < 0).sum() > 0.5 * len(layer):
    layer = decisions.scopes
  layer = np.unique(layer, return_inverse=True)[1].reshape(-1)
  micro = _of_longest(decisions, graph.microbatch) + 1
  pair = layer * (int(micro.max(initial=0)) + 1) + micro
  pair = np.unique(pair, return_inverse=True)[1].reshape(-1)
  return layer.astype(np.int64), micro.astype(np.int64), pair.astype(np.int64)


def _of_longest(decisions: Decisions, label: np.ndarray) -> np.ndarray:
  known = np.flatnonzero(label >= 0)
  us = decisions.problem.fastest_us[known]
  by_time = known[np.argsort(us, kind="stable")]
  result = np.full(decisions.num_decisions, -1, np.int64)
  # The last assignment wins.
  result[decisions.decision_of[by_time]] = label[by_time]
  return result


def _positions(decisions: Decisions, order: np.ndarray) -> np.ndarray:
  us = decisions.problem.fastest_us[order]
  before = (np.cumsum(us) - us) / max(float(us.sum()), _LEAST_US)
  result = np.zeros(decisions.num_decisions)
  result[decisions.decision_of[order[::-1]]] = before[::-1]
  return result
