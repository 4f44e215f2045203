"""A problem as a policy decides on it in order: arrays for `decoding`.

Ops are scheduled one after the other, in the order in which they could start
if communication were free. A decision is due when the first of its ops comes;
by then the devices' clocks, the outputs that are there already and the bytes
that are held say what each device has to offer. NumPy only.
"""

from typing import NamedTuple

import numpy as np

from tfplace.learned.decisions import Decisions
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.list_scheduling.costs import list_tables
from tfplace.placers.list_scheduling.placers import held_bytes
from tfplace.simulate.links import Links, mean_transfer

_LEAST_US = 1e-9
_NO_LINK_US = 1e12  # in the place of infinity, of which differences are NaN


class PartialTables(NamedTuple):
  """A problem and its decisions, for the decoder. N decisions, D devices.

  Attributes:
    order: [num_ops] ops as they are scheduled, producers before consumers.
    decision_of: [num_ops] int32.
    op_us: [num_ops, D] float64; infinite where disallowed.
    overhead_us: [D] float64.
    links: between the devices.
    in_offsets, in_src, in_bytes: edges by consumer, see `ListTables`.
    allowed: [N, D] bool.
    work_us: [N, D] float64 with overhead; 0 where disallowed.
    fastest_us: [N] float64: least of `work_us` of the allowed devices.
    near_offsets, near, near_us: neighbours by decision: number, or -1 - number
      where it sends to this one; what a mean link takes for it.
    persistent_bytes, held_bytes: [N] float64, the second with outputs.
    memory_bytes: [D] float64.
    layer, micro, pair: [N] int64: layer, microbatch, and both together.
    groups: [3] int64 numbers of layers, microbatches and pairs.
    position: [N] float64 share of the order before its first op, 0 to 1.
    slower: [D] float64 log of the work's time there over the fastest device's.
    base, base_shares, base_loads: of the placement that is changed:
      [N] int32 choices that leave it, -1 for none; [N, D] float64 shares of
      each decision's work; [D] float64 work beyond what all would share.
    ideal_us: of each main device, if all shared the work evenly.
    mean_us: work of a mean decision.
  """

  order: np.ndarray
  decision_of: np.ndarray
  op_us: np.ndarray
  overhead_us: np.ndarray
  links: Links
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
  ideal_us: float
  mean_us: float


def partial_tables(decisions: Decisions) -> PartialTables:
  """Packs a problem for the decoder."""
  problem = decisions.as_groups
  groups = GroupGraph(problem)
  # Groups of `problem` are the decisions, by other numbers.
  group = np.empty(groups.num_groups, np.int64)
  group[decisions.decision_of] = problem.group_of
  tables = list_tables(groups)
  work_us = np.where(groups.allowed, groups.time_us, 0.0)[group]
  near_offsets, near, near_us = _neighbours(groups, group)
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
  return PartialTables(
    order=order,
    decision_of=decisions.decision_of,
    op_us=tables.time_us,
    overhead_us=tables.overhead_us,
    links=tables.links._replace(
      latency_us=np.minimum(tables.links.latency_us, _NO_LINK_US)
    ),
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
    base_loads=_base_loads(decisions, work_us, ideal_us),
    ideal_us=ideal_us,
    mean_us=max(float(fastest_us.sum()) / max(1, len(fastest_us)), _LEAST_US),
  )


def changed(tables: PartialTables, decisions: Decisions) -> PartialTables:
  """The tables of the same decisions with another base."""
  return tables._replace(
    base=decisions.base_choices,
    base_shares=decisions.base_shares,
    base_loads=_base_loads(decisions, tables.work_us, tables.ideal_us),
  )


def _base_loads(
  decisions: Decisions, work_us: np.ndarray, ideal_us: float
) -> np.ndarray:
  """[D] work of each device beyond what all would share; 0 without a base."""
  if decisions.base is None:
    return np.zeros(work_us.shape[1])
  return (decisions.base_shares * work_us).sum(axis=0) / ideal_us - 1.0


def _neighbours(
  groups: GroupGraph, group: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Adjacency of decisions, both ways: offsets, numbers, microseconds."""
  number = np.empty(len(group), np.int64)
  number[group] = np.arange(len(group))
  src, dst, size = groups.edges
  us_per_byte, fixed_us = mean_transfer(groups.problem.cluster, with_gap=True)
  src, dst = number[src], number[dst]
  ends = np.concatenate((src, dst))
  entry = np.concatenate((dst, -1 - src))
  order = np.argsort(ends, kind="stable")
  counts = np.bincount(ends, minlength=len(group))
  offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
  us = fixed_us + np.concatenate((size, size)) * us_per_byte
  return offsets, entry[order], us[order]


def _labels(
  decisions: Decisions,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """[N] int64 layer, microbatch, and both, of each decision's longest op that
  has one; by the names of ops where the layers of the graph are unknown."""
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
  """[N] label of each decision's longest op that has one; -1 without."""
  known = np.flatnonzero(label >= 0)
  us = decisions.problem.fastest_us[known]
  by_time = known[np.argsort(us, kind="stable")]
  result = np.full(decisions.num_decisions, -1, np.int64)
  result[decisions.decision_of[by_time]] = label[by_time]  # the last one wins
  return result


def _positions(decisions: Decisions, order: np.ndarray) -> np.ndarray:
  """[N] share of the work before each decision's first op."""
  us = decisions.problem.fastest_us[order]
  before = (np.cumsum(us) - us) / max(float(us.sum()), _LEAST_US)
  result = np.zeros(decisions.num_decisions)
  result[decisions.decision_of[order[::-1]]] = before[::-1]
  return result
