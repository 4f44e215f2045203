"""List-scheduling placers: HEFT and Baechi's m-TOPO, m-ETF and m-SCT.

Each placer tries the ops alone and with co-placement (`co_placement`), and
keeps the best. HEFT is from Topcuoglu, Hariri and Wu, "Performance-effective
and low-complexity task scheduling for heterogeneous computing" (2002), the
others from Jeon et al., "Baechi: Fast Device Placement of Machine Learning
Graphs" (SoCC 2020).
"""

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.paths import upward_ranks
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.list_scheduling.co_placement import by_grouping
from tfplace.placers.list_scheduling.costs import ListTables, list_tables
from tfplace.placers.list_scheduling.earliest_start import earliest_start
from tfplace.placers.list_scheduling.favorite_children import favorite_children
from tfplace.placers.list_scheduling.kernels import (
  earliest_finish,
  nothing_placed,
)
from tfplace.placers.one_shot import Batches
from tfplace.simulate.links import mean_transfer

# Time limit of m-SCT's linear program in seconds; 50,000 ops take about 6.
_LONGEST_S = 30.0


def m_topo(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Baechi's m-TOPO: fills the fastest kind of devices in topological order.

  A device is full when it holds the average memory per device plus the memory
  of the largest group.
  """
  yield by_grouping(groups, _filled)


def _filled(groups: GroupGraph) -> np.ndarray:
  devices = main_devices(groups)
  held = held_bytes(groups)
  share = float(held.sum()) / len(devices) + float(held.max(initial=0.0))
  memory = groups.problem.cluster.memory_bytes[devices]
  limits = np.minimum(memory, share)
  wanted = np.empty(groups.num_groups, np.int64)
  at, used = 0, 0.0
  for group in _with_variables(groups):
    if used + held[group] > limits[at] and at + 1 < len(devices):
      at, used = at + 1, 0.0
    used += held[group]
    wanted[group] = devices[at]
  return groups.beside_readers(groups.nearest(wanted))


def _with_variables(groups: GroupGraph) -> np.ndarray:
  """Returns [num_groups] groups in order, variables before first readers."""
  position, readers = groups.position, groups.first_readers
  at = np.where(readers >= 0, position[readers], position)
  return np.lexsort((position, readers < 0, at))


def m_etf(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Baechi's m-ETF, after the ETF of Hwang et al. (1989).

  Schedules the pair of a ready op and a device with free memory that can start
  first, on the fastest kind of device, or on others where needed. Ties go to
  the op with the largest upward rank, since the paper gives no rule.
  """
  nobody = np.full(groups.problem.graph.num_ops, -1, np.int64)
  yield by_grouping(groups, lambda view: schedule(view, nobody))


def m_sct(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Baechi's m-SCT, after Hanen and Munier (1995).

  A linear program gives each op at most one favorite child. Ops are then
  scheduled as by m-ETF, but a device waits for the favorite child of its last
  op if that op cannot start sooner elsewhere. If the program times out, after
  an eighth of the remaining budget, favorites are chosen greedily.
  """
  limit_s = min(_LONGEST_S, max(0.1, budget.left_s / 8))
  if not budget.is_timed:
    limit_s = np.inf  # Makes results for a seed equal on all machines.
  favorites = favorite_children(groups.problem, list_tables(groups), limit_s)
  yield by_grouping(groups, lambda view: schedule(view, favorites))


def schedule(groups: GroupGraph, favorites: np.ndarray) -> np.ndarray:
  """Schedules by earliest start, with ties broken by upward rank.

  `favorites` has the [num_ops] favorite child of each op, for which its device
  is reserved, or -1. Returns [num_groups] int32 devices.
  """
  tables = list_tables(groups)
  graph = groups.problem.graph
  order = rank_order(graph, upward_ranks(graph, mean_times(tables)))
  placed = nothing_placed(
    tables,
    preferred(groups),
    held_bytes(groups),
    groups.problem.cluster.memory_bytes,
  )
  return earliest_start(tables, order, favorites, placed)


def heft(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Heterogeneous earliest finish time (HEFT) with insertion.

  Ops are scheduled by decreasing upward rank (mean times, mean communication),
  each on the device where it finishes first. A colocation group follows its
  first op. Only persistent bytes count against memory.
  """
  yield by_grouping(groups, _by_rank)


def _by_rank(groups: GroupGraph) -> np.ndarray:
  tables, problem = list_tables(groups), groups.problem
  transfer = mean_transfer(problem.cluster)
  ranks = upward_ranks(problem.graph, mean_times(tables), *transfer)
  placed = nothing_placed(
    tables,
    groups.allowed,
    groups.persistent_bytes,
    problem.cluster.memory_bytes,
  )
  return earliest_finish(tables, rank_order(problem.graph, ranks), placed)


def mean_times(tables: ListTables) -> np.ndarray:
  """Returns the [num_ops] float64 mean time over devices that run the op."""
  allowed = np.isfinite(tables.time_us)
  total = np.where(allowed, tables.time_us, 0.0).sum(axis=1)
  return total / allowed.sum(axis=1)


def rank_order(graph: OpGraph, ranks: np.ndarray) -> np.ndarray:
  """Sorts [num_ops] ops by decreasing rank, then in topological order."""
  return np.lexsort((graph.topological_position, -ranks))


def preferred(groups: GroupGraph) -> np.ndarray:
  """Returns [num_groups, num_devices] bool devices, the fastest kind if any."""
  main = np.zeros(groups.num_devices, bool)
  main[main_devices(groups)] = True
  narrowed = groups.allowed & main
  keeps = narrowed.any(axis=1, keepdims=True)
  return np.where(keeps, narrowed, groups.allowed)


def held_bytes(groups: GroupGraph) -> np.ndarray:
  """Returns the [num_groups] bytes that each group counts against memory.

  These are persistent bytes plus a share of the outputs, reduced such that the
  cluster could hold all at once. Outputs are freed during the step, but Baechi
  counts them as held.
  """
  outputs = groups.total_bytes - groups.persistent_bytes
  capacity = float(groups.problem.cluster.memory_bytes.sum())
  spare = max(0.0, 0.9 * capacity - float(groups.persistent_bytes.sum()))
  share = min(1.0, spare / max(float(outputs.sum()), 1.0))
  return groups.persistent_bytes + share * outputs
