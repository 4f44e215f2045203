"""Parallel search: greedy sweeps over coarse groups, then annealing in rounds.

A few hundred moves of coarse groups, from large to small, do what annealing of
single groups needs tens of thousands of simulations for. Rounds of annealing
follow. On large graphs all chains move the best placement and combine their
changes; on small ones each anneals the best placement or a start by itself.
Deterministic if evaluations are the budget.
"""

import concurrent.futures
import itertools
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import is_optimal
from tfplace.placers.groups import GroupGraph
from tfplace.placers.merge import NUM_COARSE, coarse_levels
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.state import search_state, search_tables, time_order
from tfplace.simulate import engine

Improved = Callable[[float, int], None]
_OnAll = Callable[[Callable[[int], object]], None]
# All of these are by trial. Movable groups from which a graph is large.
_LARGE = 1000
# Share of the budget for sweeps of large graphs, and for their first part, in
# which each chain sweeps the coarsest levels again and again.
_SWEEPS, _REPEATS = 0.5, 0.2
# Step time, relative to the best start, up to which a start is swept.
_NEAR = 1.1
# Evaluations per round, group and chain, and rounds without improvement after
# which the search ends; if the budget has a gap, it is a third of all rounds.
_EVALUATIONS_PER_GROUP, _PATIENCE = 400, 40
# First temperature of a round relative to the lower bound, from a start and
# from the best placement, at least the mean work of a group, so that every move
# has a chance; and the last one.
_HOT, _WARM, _COLD = 0.01, 0.001, 3e-5
# Penalty, in lower bounds, for exceeding the memory of a device by 100%.
_PENALTY = 5.0
# Moves of each chain until the changes of all are combined, or else until the
# temperature falls, and seconds until the budget is checked, at most.
_TOGETHER, _APART, _CHECK_S = 16, 200, 0.1
# Levels of a large graph that move at the same time.
_WINDOW = 4
# Moves without an effect after which a round ends.
_MOST_IDLE = 1000


class Search:
  """Search over the placements of one problem.

  Args:
    chains: Number of chains, each in a thread. The result depends on it.
    like: [num_groups] devices. Placements similar to these simulate faster.
  """

  def __init__(
    self,
    groups: GroupGraph,
    seed: int,
    *,
    chains: int = 2,
    like: np.ndarray | None = None,
  ) -> None:
    groups, position, self._group_at = time_order(groups, like)
    problem = groups.problem
    self._tables = search_tables(groups, coarse_levels(groups))
    self._is_large = len(self._tables.movable) >= _LARGE
    step = engine.pack(problem, position)
    longest_us = problem.fastest_us + step.tail_us
    self._bound_us = max(problem.lower_bound_us, longest_us.max(initial=0.0))
    # The minimum avoids a zero scale for graphs that are empty or take no time.
    self._unit_us = max(problem.simple_bound_us, 1e-9)
    self._work_us = float(groups.fastest_us.sum()) / max(groups.num_groups, 1)
    self._best: np.ndarray | None = None
    self.best_us = math.inf
    self._least_us = math.inf
    self._improved: Improved | None = None
    nothing = np.zeros(groups.num_groups, np.int32)
    seeds = np.random.SeedSequence(seed).spawn(chains)
    penalty_us = _PENALTY * self._unit_us
    self._chains = [
      Chain(search_state(groups, nothing, s), self._tables, step, penalty_us)
      for s in seeds
    ]
    self._rngs = [np.random.default_rng(s.spawn(1)[0]) for s in seeds]

  @property
  def best(self) -> np.ndarray | None:
    """Best placement as [num_groups] devices; None if there is none."""
    return None if self._best is None else self._best[self._group_at]

  @property
  def evaluations(self) -> int:
    """Number of simulated placements so far."""
    return sum(chain.evaluations for chain in self._chains)

  def run(
    self,
    starts: Sequence[np.ndarray],
    budget: Budget,
    improved: Improved | None = None,
  ) -> None:
    """Searches until the budget is spent and sets `best`.

    Args:
      starts: Allowed placements as [num_groups] devices, the most promising
        first.
      budget: Remaining seconds, or placements for this call.
      improved: Called with each new best step time and the evaluations so far.
    """
    if not len(self._tables.movable) or not len(starts):
      return
    self._improved = improved
    group_of = np.argsort(self._group_at)
    starts = [start[group_of] for start in starts]
    before, found_us = self.evaluations, self._evaluate(starts)
    near_us = _NEAR * min(found_us)
    near = [s for s, us in zip(starts, found_us, strict=True) if us <= near_us]
    budget = budget.minus(self.evaluations - before)
    clock = _Clock(budget, self._chains, self._bound_us)
    with concurrent.futures.ThreadPoolExecutor(len(self._chains)) as pool:

      def on_all(work: Callable[[int], object]) -> None:
        """Calls a function with the number of each chain, in parallel."""
        for job in [pool.submit(work, i) for i in range(len(self._chains))]:
          job.result()
        self._collect()

      wanted = _EVALUATIONS_PER_GROUP * len(self._tables.movable)
      if self._is_large:
        self._sweep_starts(on_all, clock, near)
        self._sweep_together(on_all, clock)
      begin = clock.progress()
      count = max(1, round((1 - begin) * clock.evaluations / wanted))
      patience, fruitless = _PATIENCE, 0
      if budget.gap:
        patience = min(patience, max(2, count // 3))
      spans = itertools.pairwise(np.linspace(begin, 1.0, count + 1))
      for turn, span in enumerate(spans):
        before_us = self.best_us
        self._anneal(on_all, clock, span, self._begin(starts, turn))
        fruitless = 0 if self.best_us < before_us else fruitless + 1
        if clock.is_over or fruitless >= patience:
          break

  def _evaluate(self, starts: Sequence[np.ndarray]) -> list[float]:
    chain, found_us = self._chains[0], []
    for start in starts:
      chain.restart(start)
      found_us.append(chain.current_us)
    self._collect()
    return found_us

  def _sweep_starts(
    self, on_all: _OnAll, clock: "_Clock", starts: Sequence[np.ndarray]
  ) -> None:
    """Sweeps the coarsest levels in each chain by itself, start after start.

    A chain has both ways of coarse levels in turn, and its neighbor the other.
    """
    still, turn = np.zeros(len(self._chains)), 0
    while turn == 0 or clock.progress() < _REPEATS:
      tops = []
      for i, chain in enumerate(self._chains):
        chain.restart(starts[(turn + i) % len(starts)])
        way = (turn // len(starts) + i) % 2
        tops.append(self._tables.top_level - NUM_COARSE * way)
      for down in range(NUM_COARSE):
        left = [self._in_turn(i, top - down) for i, top in enumerate(tops)]
        while any(map(len, left)) and clock.progress() < _SWEEPS:
          end = clock.moves()
          self._move(on_all, [groups[:end] for groups in left], still)
          left = [groups[end:] for groups in left]
      turn += 1

  def _in_turn(self, number: int, level: int) -> np.ndarray:
    """Returns each coarse group of a level twice, in random order."""
    groups = np.arange(*self._tables.level_offsets[level : level + 2])
    return np.repeat(self._rngs[number].permutation(groups), 2)

  def _sweep_together(self, on_all: _OnAll, clock: "_Clock") -> None:
    """Sweeps the finer levels from the best placement."""
    count = len(self._chains)
    self._gather()
    for level in range(self._tables.top_level - 2 * NUM_COARSE, 0, -1):
      left = self._in_turn(0, level)
      while len(left) and clock.progress() < _SWEEPS:
        end = count * clock.moves()
        parts = [left[i:end:count] for i in range(count)]
        self._move_together(on_all, clock, parts, np.zeros(count))
        left = left[end:]

  def _begin(self, starts: Sequence[np.ndarray], turn: int) -> np.ndarray:
    """Begins a round; returns [chains] first temperatures in microseconds.

    On large graphs all chains take the best placement, on small ones each takes
    the best one or a start in turn.
    """
    relative = np.full(len(self._chains), _WARM)
    if self._is_large:
      self._gather()
    else:
      for i, chain in enumerate(self._chains):
        devices = starts[(turn + i) % len(starts)]
        if turn > 0 and (turn + i) % 2 and self._best is not None:
          devices = self._best
        else:
          relative[i] = _HOT
        chain.restart(devices)
    return np.maximum(relative * self._unit_us, self._work_us)

  def _anneal(
    self,
    on_all: _OnAll,
    clock: "_Clock",
    span: tuple[float, float],
    hot_us: np.ndarray,
  ) -> None:
    """Anneals for one round, a span of the budget."""
    fall, idle = _COLD * self._unit_us / hot_us, 0
    while idle < _MOST_IDLE and (at := clock.progress()) < span[1]:
      share = (at - span[0]) / (span[1] - span[0])
      count = clock.moves(_TOGETHER if self._is_large else _APART)
      parts = [self._sampled(i, share, count) for i in range(len(self._chains))]
      before, heat_us = self.evaluations, hot_us * fall**share
      if self._is_large:
        self._move_together(on_all, clock, parts, heat_us)
      else:
        self._move(on_all, parts, heat_us)
      idle = 0 if self.evaluations > before else idle + count

  def _move(
    self,
    on_all: _OnAll,
    parts: Sequence[np.ndarray],
    heat_us: np.ndarray,
  ) -> None:
    """Moves coarse groups in each chain, at its own temperature."""
    on_all(lambda i: self._chains[i].move(parts[i], heat_us[i]))

  def _gather(self) -> None:
    """Lets all chains continue from the best placement."""
    if self._best is not None:
      self._chains[0].restart(self._best)
    for chain in self._chains[1:]:
      chain.follow(self._chains[0])

  def _move_together(
    self,
    on_all: _OnAll,
    clock: "_Clock",
    parts: Sequence[np.ndarray],
    heat_us: np.ndarray,
  ) -> None:
    """Moves one placement in all chains, then combines their changes.

    Where two chains moved the same group, the better one counts. If all changes
    together are worse than those of the best chain, these remain alone.

    Args:
      parts: Coarse groups for each chain; all chains have the same placement,
        and have the same one afterwards.
    """
    base = self._chains[0].devices.copy()
    self._move(on_all, parts, heat_us)
    best, *others = sorted(self._chains, key=lambda chain: chain.current_us)
    merged = base.copy()
    for chain in (*reversed(others), best):
      changed = chain.devices != base
      merged[changed] = chain.devices[changed]
    if (merged != best.devices).any() and clock.progress() < 1.0:
      tried = min(others, key=lambda chain: chain.evaluations)
      tried.restart(merged)
      best = min(best, tried, key=lambda chain: chain.current_us)
    for chain in self._chains:
      if chain is not best:
        chain.follow(best)
    self._collect()

  def _sampled(self, number: int, share: float, count: int) -> np.ndarray:
    """Samples [count] coarse groups, smaller ones later in a round."""
    tables, rng = self._tables, self._rngs[number]
    lowest, end = 0, tables.top_level + 1
    if self._is_large:
      most = max(0, end - NUM_COARSE - _WINDOW)
      lowest = round(most * max(0.0, 0.5 - 0.625 * share))
      end = min(end, lowest + _WINDOW)
    level = rng.integers(lowest, end, count)
    first, last = tables.level_offsets[level], tables.level_offsets[level + 1]
    groups = rng.integers(first, last)
    single = level == 0
    groups[single] = rng.choice(tables.movable, np.count_nonzero(single))
    return groups

  def _collect(self) -> None:
    """Takes over and reports the best of all chains; ties go to the first."""
    for chain in self._chains:
      if chain.best_us < self.best_us:
        self.best_us, self._best = chain.best_us, chain.best.copy()
        if self._improved is not None:
          self._improved(self.best_us, self.evaluations)
      elif self.best_us == math.inf and chain.least_us < self._least_us:
        self._least_us, self._best = chain.least_us, chain.best.copy()


class _Clock:
  """Progress of chains through a budget.

  Args:
    bound_us: Lower bound of the step time.
  """

  def __init__(
    self, budget: Budget, chains: Sequence[Chain], bound_us: float
  ) -> None:
    self._budget, self._chains = budget, chains
    self._met_us = bound_us * (1 + budget.gap)
    self._began, self._seconds = time.perf_counter(), max(budget.left_s, 1e-9)
    self._before = [chain.evaluations for chain in chains]

  @property
  def evaluations(self) -> float:
    """Number of evaluations that a chain may make, as far as known."""
    if self._budget.max_evaluations is None:
      return self._chains[0].rate * self._seconds
    return self._budget.max_evaluations // len(self._chains)

  @property
  def is_over(self) -> bool:
    """True if the budget is cancelled, or a placement is good enough."""
    best_us = min(chain.best_us for chain in self._chains)
    return self._budget.is_cancelled or is_optimal(best_us, self._met_us)

  def progress(self) -> float:
    """Returns the share of the budget that is spent; 1 if it is over."""
    if self.is_over:
      return 1.0
    if self._budget.is_timed:
      return (time.perf_counter() - self._began) / self._seconds
    return self._used / max(1, self.evaluations)

  @property
  def _used(self) -> int:
    """Evaluations of the chain that has made the most."""
    each = zip(self._chains, self._before, strict=True)
    return max(chain.evaluations - before for chain, before in each)

  def moves(self, most: int = _TOGETHER) -> int:
    """Returns the number of moves of each chain until the next check."""
    left = self.evaluations - self._used
    if self._budget.is_timed:
      left = self._chains[0].rate * _CHECK_S
    return max(1, min(most, int(left)))
