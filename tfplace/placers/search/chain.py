"""One chain of the search: proposes, simulates, accepts or reverts moves.

The objective is the step time plus a penalty for bytes over capacity. The
threshold is sampled before the simulation, which stops when it exceeds it.
"""

import time
from typing import NamedTuple

import numpy as np

from tfplace.placers.search.moves import propose, uniform
from tfplace.placers.search.state import (
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
from tfplace.simulate.workspace import PEAK, Workspace

_NOTHING = np.empty(0, np.int64)


class _Parts(NamedTuple):
  """Arguments of the compiled loop."""

  step: Tables
  work: Workspace
  tables: SearchTables
  state: SearchState
  penalty_us: float


class Chain:
  """Placement that is improved move by move.

  Args:
    state: State of the chain; modified in place.
    tables: Tables of the problem and of its coarse groups.
    step: Packed problem.
    penalty_us: Penalty for exceeding the memory of a device by 100%.

  Attributes:
    rate: Latest measured moves per second.
  """

  def __init__(
    self,
    state: SearchState,
    tables: SearchTables,
    step: Tables,
    penalty_us: float,
  ) -> None:
    self.rate = 0.0
    self._state = state
    work = engine.workspace(step)
    self._parts = _Parts(step, work, tables, state, penalty_us)

  @property
  def best(self) -> np.ndarray:
    """Best devices so far, [num_groups] int32."""
    return self._state.best

  @property
  def devices(self) -> np.ndarray:
    """Current devices, [num_groups] int32."""
    return self._state.devices

  @property
  def current_us(self) -> float:
    """Current step time plus the penalty for excess memory."""
    return float(self._state.numbers[CURRENT])

  @property
  def best_us(self) -> float:
    """Best step time; infinite if nothing has fit in memory."""
    return float(self._state.numbers[BEST])

  @property
  def least_us(self) -> float:
    """Best objective while nothing has fit in memory."""
    return float(self._state.numbers[LEAST])

  @property
  def evaluations(self) -> int:
    """Number of simulated placements so far."""
    return int(self._state.counts[EVALUATIONS])

  def restart(self, devices: np.ndarray) -> None:
    """Sets the current placement to [num_groups] devices."""
    self._state.devices[:] = devices
    self._state.numbers[CURRENT] = np.inf
    self.move(_NOTHING, 0.0)

  def follow(self, other: "Chain") -> None:
    """Continues from the current placement of another chain."""
    self._state.numbers[CURRENT] = other.current_us
    self._state.counts[IS_STALE] = 1
    for name in ("devices", "op_devices", "start_us"):
      getattr(self._state, name)[:] = getattr(other._state, name)

  def move(self, coarse_groups: np.ndarray, temperature_us: float) -> int:
    """Tries to move each of [?] int64 coarse groups; returns evaluations.

    At a temperature of 0, all of a coarse group moves, and only moves that
    shorten the step are kept. Moves that change nothing are not simulated.
    """
    before, began = self.evaluations, time.perf_counter()
    # The kernel is compiled for each layout of an array.
    _move(self._parts, np.ascontiguousarray(coarse_groups), temperature_us)
    seconds = max(time.perf_counter() - began, 1e-9)
    self.rate = max(1, len(coarse_groups)) / seconds
    return self.evaluations - before


@kernel
def _move(
  parts: _Parts, coarse_groups: np.ndarray, temperature_us: float
) -> None:
  """Simulates a new placement, then moves; the only entry from Python."""
  tables, state = parts.tables, parts.state
  if state.numbers[CURRENT] == np.inf:
    for group in range(len(state.devices)):
      _set(tables, state, group, np.int64(state.devices[group]))
    _judge(parts, np.inf)
  for coarse in coarse_groups:
    propose(tables, state, coarse, temperature_us > 0)
    if not _apply(tables, state):
      continue
    now_us = state.numbers[CURRENT]
    limit = now_us * (1 - 1e-9)
    if temperature_us > 0:
      limit = now_us - temperature_us * np.log(uniform(state))
    if not _judge(parts, limit):
      for i in range(state.counts[MOVED]):
        old = np.int64(state.targets[i])
        _set(tables, state, np.int64(state.moved[i]), old)


@inlined
def _set(
  tables: SearchTables, state: SearchState, group: Index, device: Index
) -> None:
  state.devices[group] = device
  for i in range(tables.group_offsets[group], tables.group_offsets[group + 1]):
    state.op_devices[tables.group_ops[i]] = device


@inlined
def _apply(tables: SearchTables, state: SearchState) -> bool:
  """Applies the move; returns False if it changes nothing."""
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
def _judge(parts: _Parts, limit: float) -> bool:
  """Simulates the changed state; accepts it up to an objective of `limit`."""
  tables, state, work = parts.tables, parts.state, parts.work
  state.counts[EVALUATIONS] += 1
  step_time_us = engine.simulate(parts.step, state.op_devices, work, limit)
  if step_time_us == np.inf:
    return False
  excess = 0.0
  for device in range(len(tables.memory_bytes)):
    over = work.devices[PEAK, device] - tables.memory_bytes[device]
    if over > 0:
      excess += 0.01 + over / max(1.0, tables.memory_bytes[device])
  objective = step_time_us + parts.penalty_us * excess
  if objective > limit:
    return False
  state.counts[IS_STALE] = 1
  state.numbers[CURRENT] = objective
  for op in range(len(state.start_us)):
    state.start_us[op] = work.nodes[op].time
  # Until a placement fits, the best is the one with the lowest objective.
  rank = BEST if excess == 0.0 else LEAST
  is_best = excess == 0.0 or state.numbers[BEST] == np.inf
  if is_best and objective < state.numbers[rank]:
    state.numbers[rank] = objective
    for group in range(len(state.best)):
      state.best[group] = state.devices[group]
  return True
