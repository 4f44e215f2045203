"""Simulated annealing chain: proposes, simulates, accepts or reverts moves.

The objective is the step time plus a penalty for bytes over capacity. The
threshold is sampled before the simulation, which stops when it exceeds it.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tfplace.placers.search.guide import (
  OWN,
  RATED,
  Guide,
  guide_of,
  sample_rated,
)
from tfplace.placers.search.moves import move_coarse, propose, uniform
from tfplace.placers.search.schedule import Rounds, Scale
from tfplace.placers.search.state import (
  BEST,
  CURRENT,
  EVALUATIONS,
  IS_STALE,
  LEAST,
  MOVED,
  TINY_US,
  SearchState,
  SearchTables,
)
from tfplace.simulate import engine
from tfplace.simulate.jit import Index, expanded, helper, inlined, kernel
from tfplace.simulate.tables import Tables
from tfplace.simulate.workspace import Workspace


class Cooling(NamedTuple):
  """Temperature schedule of a chain.

  Attributes:
    evaluations: Number of placements to simulate.
    hot_us: First temperature, in microseconds of step time.
    cold_us: Last temperature; the schedule is geometric.
    lowest: Lowest level of coarse groups to move.
    highest: Highest level of coarse groups to move.
    part_share: See `propose`.
  """

  evaluations: int
  hot_us: float
  cold_us: float
  lowest: int
  highest: int
  part_share: float


class _Parts(NamedTuple):
  """Arguments of all compiled tasks of a chain."""

  step: Tables
  work: Workspace
  tables: SearchTables
  state: SearchState
  penalty_us: float


_RESTART, _ANNEAL, _SWEEP, _JUMP = 0, 1, 2, 3
_NO_COOLING = Cooling(0, 1.0, 1.0, 0, 0, 0.0)
_NOTHING = np.empty(0, np.int64)
_MOST_IDLE = 1000  # moves in a row that change nothing, which end a cooling


class Chain:
  """Placement that is annealed.

  Args:
    state: State of the chain; modified in place.
    tables: Tables of the problem, including the coarse groups of this chain.

  Attributes:
    tables: Tables of the problem.
    rate: Latest measured evaluations per second.
    done: Evaluations in the current round.
    guide: Rated moves to sample; none at first.
  """

  def __init__(
    self,
    state: SearchState,
    tables: SearchTables,
    step: Tables,
    scale: Scale,
  ) -> None:
    self.rate = 0.0
    self.done = 0
    self.tables = tables
    self.guide = guide_of((), tables.allowed.shape[1])
    self._state = state
    self._step = step
    self._work = engine.workspace(step)
    self._scale = scale

  @property
  def devices(self) -> np.ndarray:
    """Current devices, [num_groups] int32."""
    return self._state.devices

  @property
  def best(self) -> np.ndarray:
    """Best devices so far, [num_groups] int32."""
    return self._state.best

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
    self._run(self.tables, _RESTART)

  def sweep(self, tables: SearchTables, coarse_groups: np.ndarray) -> None:
    """Tries each coarse group on a neighbor's device and on one more device.

    Keeps moves that shorten the step.

    Args:
      coarse_groups: [?] int64 coarse groups in order.
    """
    self._run(tables, _SWEEP, given=coarse_groups)

  def jump(self, devices: np.ndarray) -> None:
    """Continues from [num_groups] devices if they are better than the best."""
    self._run(self.tables, _JUMP, given=devices.astype(np.int64))

  def cool(self, cooling: Cooling) -> int:
    """Anneals; returns the evaluations, fewer if no move has an effect."""
    return self._run(self.tables, _ANNEAL, cooling)

  def _run(
    self,
    tables: SearchTables,
    task: int,
    cooling: Cooling = _NO_COOLING,
    given: np.ndarray = _NOTHING,
  ) -> int:
    parts = _Parts(
      self._step, self._work, tables, self._state, self._scale.penalty_us
    )
    return _run(parts, task, cooling, given, self.guide)

  def anneal(
    self,
    rounds: Rounds,
    number: int,
    hot_us: float,
    until: float,
    is_done: Callable[["Chain"], bool],
    after_chunk: Callable[["Chain"], None],
  ) -> None:
    """Anneals in chunks until a fraction of a round has passed.

    Stops early if there is nothing to gain or no move has an effect.

    Args:
      until: Fraction of the round at which to stop.
      is_done: Returns True for a chain that has nothing to gain.
      after_chunk: Called with this chain after each chunk.
    """
    at = rounds.progress(number, self.done, self.rate, 0)
    while at < until and not is_done(self):
      chunk = rounds.chunk(number, self.done, self.rate)
      if chunk < 1:
        break
      began = time.perf_counter()
      after = rounds.progress(number, self.done + chunk, self.rate, chunk)
      done = self.cool(self._cooling(chunk, hot_us, at, min(1.0, after)))
      self.done += done
      if done < chunk:
        break
      self.rate = chunk / max(time.perf_counter() - began, 1e-9)
      at = rounds.progress(number, self.done, self.rate, 0)
      after_chunk(self)

  def _cooling(
    self, evaluations: int, hot_us: float, start: float, end: float
  ) -> Cooling:
    fall = self._scale.cold_us / hot_us
    return Cooling(
      evaluations,
      hot_us * fall**start,
      hot_us * fall**end,
      *self._scale.levels(self.tables.top_level, start, hot_us),
      self._scale.part_share,
    )


@kernel
def _run(
  parts: _Parts, task: int, cooling: Cooling, given: np.ndarray, guide: Guide
) -> int:
  """Runs a task and returns its evaluations; the only entry from Python.

  Tasks are expanded here, because each compiled function that calls `_judge`
  contains the whole simulator.

  Args:
    given: int64 coarse groups to sweep, or devices to jump to.
  """
  if task == _RESTART:
    return _restart(parts)
  if task == _SWEEP:
    return _sweep(parts, given, guide)
  if task == _JUMP:
    return _jump(parts, given)
  return _anneal(parts, cooling, guide)


@expanded
def _restart(parts: _Parts) -> int:
  state = parts.state
  for group in range(len(state.devices)):
    _set(parts.tables, state, group, np.int64(state.devices[group]))
  _judge(parts, np.inf)
  return 1


@expanded
def _sweep(parts: _Parts, coarse_groups: np.ndarray, guide: Guide) -> int:
  tables, state, done = parts.tables, parts.state, 0
  for coarse in coarse_groups:
    for number in range(2):
      kind, is_new = OWN, False
      if guide.share[0] > 0.0 and uniform(state) < guide.share[0]:
        sample_rated(guide, state, tables.allowed.shape[1])
        is_new = _apply(tables, state)
        kind = RATED if is_new else OWN
      if not is_new:
        move_coarse(tables, state, coarse, number == 0)
        if not _apply(tables, state):
          continue
      now_us = state.numbers[CURRENT]
      limit = now_us * (1 - 1e-9)
      guide.tally[kind, 1] += 1.0
      if not _judge(parts, limit):
        _undo(tables, state)
      elif now_us < np.inf:
        guide.tally[kind, 0] += _gain(now_us, state.numbers[CURRENT])
      done += 1
  return done


@expanded
def _jump(parts: _Parts, devices: np.ndarray) -> int:
  tables, state = parts.tables, parts.state
  state.counts[MOVED] = len(devices)
  for group in range(len(devices)):
    state.moved[group], state.targets[group] = group, devices[group]
  done = 0
  if _apply(tables, state):
    limit = min(state.numbers[CURRENT], state.numbers[BEST]) * (1 - 1e-9)
    if not _judge(parts, limit):
      _undo(tables, state)
    done = 1
  return done


@expanded
def _anneal(parts: _Parts, cooling: Cooling, guide: Guide) -> int:
  tables, state = parts.tables, parts.state
  lowest, highest = cooling.lowest, cooling.highest
  fall = cooling.cold_us / cooling.hot_us
  factor = fall ** (1.0 / max(1, cooling.evaluations))
  temperature = cooling.hot_us
  done = idle = 0
  while done < cooling.evaluations and idle < _MOST_IDLE:
    kind = OWN
    if guide.share[0] > 0.0 and uniform(state) < guide.share[0]:
      kind = RATED
      sample_rated(guide, state, tables.allowed.shape[1])
    else:
      propose(tables, state, lowest, highest, cooling.part_share)
    if not _apply(tables, state):
      idle += 1  # Nothing changes, so a simulation would be wasted.
      continue
    idle = 0
    best_us = state.numbers[BEST]
    limit = state.numbers[CURRENT] - temperature * np.log(uniform(state))
    if not _judge(parts, limit):
      _undo(tables, state)
    guide.tally[kind, 1] += 1.0
    if state.numbers[BEST] < best_us < np.inf:
      guide.tally[kind, 0] += _gain(best_us, state.numbers[BEST])
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
def _undo(tables: SearchTables, state: SearchState) -> None:
  for i in range(state.counts[MOVED]):
    group, old = np.int64(state.moved[i]), np.int64(state.targets[i])
    _set(tables, state, group, old)


@inlined
def _gain(before_us: float, after_us: float) -> float:
  return np.log((before_us + TINY_US) / (after_us + TINY_US))


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
    over = work.peak_bytes[device] - tables.memory_bytes[device]
    if over > 0:
      excess += 0.01 + over / max(1.0, tables.memory_bytes[device])
  objective = step_time_us + parts.penalty_us * excess
  if objective > limit:
    return False
  state.counts[IS_STALE] = 1
  state.numbers[CURRENT] = objective
  for op in range(len(state.start_us)):
    state.start_us[op] = work.ops.nodes[op].time
  # Until a placement fits, the best is the one with the lowest objective.
  rank = BEST if excess == 0.0 else LEAST
  is_best = excess == 0.0 or state.numbers[BEST] == np.inf
  if is_best and objective < state.numbers[rank]:
    state.numbers[rank] = objective
    for group in range(len(state.best)):
      state.best[group] = state.devices[group]
  return True
