"""The compiled loop of the search: propose, simulate, keep or undo.

Simulated annealing over groups' devices by the exact simulator. A proposal's
threshold is drawn before it is simulated, so that the simulation stops as
soon as it must be rejected. The objective is the step time where all fits;
where it does not, a penalty that grows with the excess bytes comes on top.
A placement that needs a missing link takes for ever, and is never kept.
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers.search.moves import move_cluster, propose, uniform
from tfplace.placers.search.tables import (
  ACCEPTED,
  BEST,
  CURRENT,
  EVALUATIONS,
  IS_STALE,
  LEAST,
  MOVED,
  SearchState,
  SearchTables,
)
from tfplace.simulate import engine
from tfplace.simulate.jit import Index, helper, inlined, kernel
from tfplace.simulate.tables import Tables
from tfplace.simulate.workspace import Workspace


class Cooling(NamedTuple):
  """How a chain anneals.

  Attributes:
    evaluations: how many placements to simulate.
    hot_us: temperature at the start, microseconds of step time.
    cold_us: temperature at the end; in between it falls geometrically.
    lowest: least level of clusters that move as one.
    highest: greatest such level.
    part_share: see `propose`.
  """

  evaluations: int
  hot_us: float
  cold_us: float
  lowest: int
  highest: int
  part_share: float


_RESTART, _ANNEAL, _SWEEP = 0, 1, 2
_NO_COOLING = Cooling(0, 1.0, 1.0, 0, 0, 0.0)
_NO_UNITS = np.empty(0, np.int64)


def restart(
  step: Tables,
  work: Workspace,
  tables: SearchTables,
  state: SearchState,
  penalty_us: float,
) -> None:
  """Evaluates `devices` and makes them the current state.

  Args:
    step: the simulator's tables.
    work: the simulator's workspace.
    tables: the search's tables.
    state: the chain; changed.
    penalty_us: what an excess of a whole device's memory costs.
  """
  chain = step, work, tables, state, penalty_us
  _run(*chain, _RESTART, _NO_COOLING, _NO_UNITS)


def anneal(
  step: Tables,
  work: Workspace,
  tables: SearchTables,
  state: SearchState,
  penalty_us: float,
  cooling: Cooling,
) -> int:
  """Anneals for a number of evaluations.

  Args:
    step, work, tables, state, penalty_us: as of `restart`.
    cooling: how.

  Returns:
    Placements simulated; fewer than `cooling.evaluations` where no move changes
    anything.
  """
  chain = step, work, tables, state, penalty_us
  return _run(*chain, _ANNEAL, cooling, _NO_UNITS)


def sweep(
  step: Tables,
  work: Workspace,
  tables: SearchTables,
  state: SearchState,
  penalty_us: float,
  units: np.ndarray,
) -> None:
  """Tries whole clusters elsewhere, and keeps what shortens the step.

  Each is tried where a neighbour is, and on one more device.

  Args:
    step, work, tables, state, penalty_us: as of `restart`.
    units: [?] int64 the clusters, in order.
  """
  chain = step, work, tables, state, penalty_us
  _run(*chain, _SWEEP, _NO_COOLING, units)


@kernel
def _run(
  step: Tables,
  work: Workspace,
  tables: SearchTables,
  state: SearchState,
  penalty_us: float,
  task: int,
  cooling: Cooling,
  units: np.ndarray,
) -> int:
  """The one entry from Python, and no helpers that simulate but `_judge`: each
  would be compiled with the whole simulator once more."""
  if task == _RESTART:
    for group in range(len(state.devices)):
      _set(tables, state, group, np.int64(state.devices[group]))
    _judge(step, work, tables, state, np.inf, penalty_us)
    return 1
  done = idle = 0
  if task == _SWEEP:
    for unit in units:
      for number in range(2):
        move_cluster(tables, state, unit, number == 0)
        if not _apply(tables, state):
          continue
        limit = state.numbers[CURRENT] * (1 - 1e-9)
        if not _judge(step, work, tables, state, limit, penalty_us):
          _undo(tables, state)
        done += 1
    return done
  lowest, highest = cooling.lowest, cooling.highest
  fall = cooling.cold_us / cooling.hot_us
  factor = fall ** (1.0 / max(1, cooling.evaluations))
  temperature = cooling.hot_us
  while done < cooling.evaluations and idle < 1000:
    propose(tables, state, lowest, highest, cooling.part_share)
    if not _apply(tables, state):
      idle += 1  # nothing changes: not worth a simulation
      continue
    idle = 0
    limit = state.numbers[CURRENT] - temperature * np.log(uniform(state))
    if not _judge(step, work, tables, state, limit, penalty_us):
      _undo(tables, state)
    temperature *= factor
    done += 1
  return done


@inlined
def _set(
  tables: SearchTables, state: SearchState, group: Index, device: Index
) -> None:
  state.devices[group] = device
  for i in range(tables.group_offsets[group], tables.group_offsets[group + 1]):
    state.op_devices[tables.group_ops[i]] = device


@helper
def _apply(tables: SearchTables, state: SearchState) -> bool:
  """Makes the move; false, and nothing changed, if it is not one."""
  kept = 0
  for i in range(state.counts[MOVED]):
    group, target = np.int64(state.moved[i]), np.int64(state.targets[i])
    old = np.int64(state.devices[group])
    if target != old and tables.allowed[group, target]:
      _set(tables, state, group, target)
      state.moved[kept], state.targets[kept] = group, old
      kept += 1
  state.counts[MOVED] = kept
  return kept > 0


@helper
def _undo(tables: SearchTables, state: SearchState) -> None:
  for i in range(state.counts[MOVED]):
    group, old = np.int64(state.moved[i]), np.int64(state.targets[i])
    _set(tables, state, group, old)


@helper
def _judge(
  step: Tables,
  work: Workspace,
  tables: SearchTables,
  state: SearchState,
  limit: float,
  penalty_us: float,
) -> bool:
  """Simulates the changed state; keeps it if its objective is in the limit."""
  state.counts[EVALUATIONS] += 1
  step_time_us = engine.simulate(step, state.op_devices, work, limit)
  if step_time_us == np.inf:
    return False
  excess = 0.0
  for device in range(len(tables.memory_bytes)):
    over = work.peak_bytes[device] - tables.memory_bytes[device]
    if over > 0:
      excess += 0.01 + over / max(1.0, tables.memory_bytes[device])
  objective = step_time_us + penalty_us * excess
  if objective > limit:
    return False
  state.counts[ACCEPTED] += 1
  state.counts[IS_STALE] = 1
  state.numbers[CURRENT] = objective
  for op in range(len(state.start_us)):
    state.start_us[op] = work.ops.nodes[op].time
  # Until something fits, what fits least badly is the best.
  rank = BEST if excess == 0.0 else LEAST
  is_best = excess == 0.0 or state.numbers[BEST] == np.inf
  if is_best and objective < state.numbers[rank]:
    state.numbers[rank] = objective
    for group in range(len(state.best)):
      state.best[group] = state.devices[group]
  return True
