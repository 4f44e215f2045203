"""One chain of the search: its state and its turns at annealing."""

import time
from collections.abc import Callable

import numpy as np

from tfplace.placers.search import kernel
from tfplace.placers.search.config import Plan, Scale
from tfplace.placers.search.tables import (
  BEST,
  CURRENT,
  EVALUATIONS,
  LEAST,
  SearchState,
  SearchTables,
)
from tfplace.simulate import engine


class Chain:
  """A placement that is annealed.

  Args:
    state: where it is; changed in place.
    tables: of the problem, with the clusters that it moves.
    step: the simulator's tables.
    scale: of the problem.

  Attributes:
    tables: of the problem, with the clusters that it moves.
    rate: evaluations per second, as last measured.
    done: evaluations of this round.
  """

  def __init__(
    self,
    state: SearchState,
    tables: SearchTables,
    step: engine.Tables,
    scale: Scale,
  ) -> None:
    self.rate = 0.0
    self.done = 0
    self._state = state
    self.tables = tables
    self._step = step
    self._work = engine.workspace(step)
    self._scale = scale

  @property
  def devices(self) -> np.ndarray:
    """[num_groups] int32 where it is."""
    return self._state.devices

  @property
  def best(self) -> np.ndarray:
    """[num_groups] int32 the best that it has been on."""
    return self._state.best

  @property
  def current_us(self) -> float:
    """The step time where it is, and the penalty for what does not fit."""
    return float(self._state.numbers[CURRENT])

  @property
  def best_us(self) -> float:
    """The best step time; infinite where nothing has fitted."""
    return float(self._state.numbers[BEST])

  @property
  def least_us(self) -> float:
    """The least of what `current_us` was."""
    return float(self._state.numbers[LEAST])

  @property
  def evaluations(self) -> int:
    """Placements simulated so far."""
    return int(self._state.counts[EVALUATIONS])

  def restart(self, devices: np.ndarray) -> None:
    """Puts it on [num_groups] devices."""
    self._state.devices[:] = devices
    kernel.restart(
      self._step,
      self._work,
      self.tables,
      self._state,
      self._scale.penalty_us,
    )

  def sweep(self, tables: SearchTables, units: np.ndarray) -> None:
    """Tries [?] clusters of other tables of the problem elsewhere."""
    kernel.sweep(
      self._step,
      self._work,
      tables,
      self._state,
      self._scale.penalty_us,
      units,
    )

  def anneal(
    self,
    plan: Plan,
    number: int,
    hot_us: float,
    until: float,
    is_done: Callable[["Chain"], bool],
    after_chunk: Callable[["Chain"], None],
  ) -> None:
    """Anneals, in chunks, up to a share of a round, or until no move changes
    anything.

    Args:
      plan: of all rounds.
      number: of the round.
      hot_us: first temperature of the round.
      until: share of the round that is over then.
      is_done: of this chain, whether there is nothing to gain.
      after_chunk: called with this chain after each chunk.
    """
    config = self._scale.config
    at = plan.progress(number, self.done, self.rate, 0)
    while at < until and not is_done(self):
      chunk = plan.chunk(number, self.done, self.rate, config)
      if chunk < 1:
        break
      began = time.perf_counter()
      after = plan.progress(number, self.done + chunk, self.rate, chunk)
      done = self._cool(chunk, hot_us, at, min(1.0, after))
      self.done += done
      if done < chunk:
        break
      self.rate = chunk / max(time.perf_counter() - began, 1e-9)
      at = plan.progress(number, self.done, self.rate, 0)
      after_chunk(self)

  def _cool(
    self, evaluations: int, hot_us: float, start: float, end: float
  ) -> int:
    """One chunk, from one share of the round to another; its evaluations."""
    scale = self._scale
    fall = scale.cold_us / hot_us
    top = len(self.tables.level_offsets) - 2
    cooling = kernel.Cooling(
      evaluations,
      hot_us * fall**start,
      hot_us * fall**end,
      *scale.levels(top, start, hot_us),
      scale.part_share,
    )
    return kernel.anneal(
      self._step,
      self._work,
      self.tables,
      self._state,
      scale.penalty_us,
      cooling,
    )
