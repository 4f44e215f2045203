"""Runs chains of the compiled search in threads, round after round.

Each round anneals every chain from hot to cold. Even turns continue from the
best placement so far, odd ones from one of the given starts; rounds are short
where the graph is small, so that a small graph gets many starts. A large one
is cooled once, slowly, from large clusters to single groups, by chains that
cluster it in different ways: which way serves a graph shows only as it cools,
so twice on the way the chain that is worst off takes over the best one's
placement. With a number of evaluations as the budget, the result depends on
the seed alone; with seconds, on the machine too.
"""

import concurrent.futures
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.placers import search_kernel
from tfplace.placers.base import Budget
from tfplace.placers.clusters import clusters_by_edges, clusters_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search_plan import Plan, SearchConfig
from tfplace.placers.search_tables import (
  BEST,
  CURRENT,
  EVALUATIONS,
  LEAST,
  SearchState,
  SearchTables,
  search_state,
  search_tables,
)
from tfplace.placers.time_order import time_order
from tfplace.simulate import engine

Improved = Callable[[float, int], None]


class _Chain:
  """One chain with its memory and the state of its schedule."""

  def __init__(
    self, state: SearchState, tables: SearchTables, step: engine.Tables
  ) -> None:
    self.state = state
    self.tables = tables
    self.work = engine.workspace(step)
    self.rate = 0.0  # evaluations per second, as last measured
    self.done = 0  # evaluations of this round


class Search:
  """A search over the placements of one problem.

  Args:
    groups: of the problem.
    seed: of its choices.
    config: how it spends its budget.
    like: [num_groups] devices of a placement like those that it will look at;
      these are simulated faster.
  """

  def __init__(
    self,
    groups: GroupGraph,
    seed: int,
    config: SearchConfig | None = None,
    like: np.ndarray | None = None,
  ) -> None:
    self.config = config or SearchConfig()
    self._order = time_order(groups, like)
    groups = self._order.groups
    # Chains that see a graph in different ways fail in different ways.
    tables = [
      search_tables(groups, find(groups))
      for find in (clusters_by_work, clusters_by_edges)
    ]
    self._num_movable = len(tables[0].movable)
    self.step = engine.pack(groups.problem, self._order.position)
    self._best: np.ndarray | None = None
    self.best_us = math.inf
    self._least_us = math.inf
    self._told_us = math.inf
    # Scales temperatures; an empty or free graph has nothing to search.
    self._unit_us = max(groups.problem.simple_bound_us, 1e-9)
    work_us = float(groups.fastest_us.sum()) / max(groups.num_groups, 1)
    hot = self.config.large_hot if self._is_large else self.config.hot
    self._hot_us = max(hot * self._unit_us, work_us)
    # No step is faster; the tails are longest paths, with their least waits.
    self._bound_us = max(
      groups.problem.lower_bound_us,
      float((groups.problem.fastest_us + self.step.tail_us).max(initial=0.0)),
    )
    self._lock = threading.Lock()
    nothing = np.zeros(groups.num_groups, np.int32)
    self._chains = [
      _Chain(search_state(groups, nothing, child), tables[i % 2], self.step)
      for i, child in enumerate(
        np.random.SeedSequence(seed).spawn(self.config.chains)
      )
    ]

  @property
  def best(self) -> np.ndarray | None:
    """[num_groups] devices of the best placement, None before the first."""
    return None if self._best is None else self._order.leave(self._best)

  @property
  def evaluations(self) -> int:
    """Placements simulated so far."""
    return sum(int(c.state.counts[EVALUATIONS]) for c in self._chains)

  def run(
    self,
    starts: Sequence[np.ndarray],
    budget: Budget,
    improved: Improved | None = None,
  ) -> None:
    """Searches until the budget is spent; then `best` holds the result.

    Args:
      starts: [num_groups] devices each, allowed, the most promising first.
      budget: seconds left, or placements, for this call.
      improved: called with each new best step time, and the evaluations done.
    """
    if not self._num_movable or not len(starts):
      return
    starts = [self._order.enter(start) for start in starts]
    plan = self._plan(starts, budget)
    with concurrent.futures.ThreadPoolExecutor(len(self._chains)) as pool:
      fruitless = 0
      for number in range(plan.rounds):
        before_us = self.best_us
        # The chains of a round start before any of them improves the best.
        hot_us = [self._begin(i, number, starts) for i in range(plan.chains)]
        for until in self._stages:
          jobs = [
            pool.submit(self._round, chain, number, plan, hot, until, improved)
            for chain, hot in zip(self._chains, hot_us, strict=True)
          ]
          for job in jobs:
            job.result()
          if until < 1.0:
            self._meet()
        self._collect()
        fruitless = 0 if self.best_us < before_us else fruitless + 1
        if self._is_optimal(self.best_us) or fruitless >= self.config.patience:
          break

  def _plan(self, starts: Sequence[np.ndarray], budget: Budget) -> Plan:
    """Evaluates the starts, and divides the budget into rounds."""
    began = time.perf_counter()
    for start in starts:
      self._restart(self._chains[0], start)
    self._collect()
    rate = len(starts) / max(time.perf_counter() - began, 1e-9)
    for chain in self._chains:
      chain.rate = rate
    count = len(self._chains)
    quota = None
    if budget.max_evaluations is not None:
      quota = max(0, budget.max_evaluations - len(starts)) // count
    expected = rate * max(0.0, budget.left_s) if quota is None else quota
    wanted = self.config.evaluations_per_group * self._num_movable
    rounds, now = max(1, round(expected / wanted)), time.perf_counter()
    left_s = max(0.0, budget.left_s)
    return Plan(rounds, count, quota, now, left_s)

  def _begin(
    self, index: int, number: int, starts: Sequence[np.ndarray]
  ) -> float:
    """Puts a chain on its start for a round; returns its temperature."""
    chain = self._chains[index]
    chain.done = 0
    turn = index + number
    if self._is_large and number == 0:
      turn = 0  # cooled slowly, the chains part anyway
    if turn % 2 == 0 and number > 0 and self._best is not None:
      self._restart(chain, self._best)
      return self.config.warm * self._hot_us
    self._restart(chain, starts[turn % len(starts)])
    return self._hot_us

  def _restart(self, chain: _Chain, devices: np.ndarray) -> None:
    chain.state.devices[:] = devices
    search_kernel.restart(
      self.step, chain.work, chain.tables, chain.state, self._penalty_us
    )

  def _round(
    self,
    chain: _Chain,
    number: int,
    plan: Plan,
    hot_us: float,
    until: float,
    improved: Improved | None,
  ) -> None:
    """Anneals one chain, in chunks, up to a share of its round."""
    cold_us = self.config.cold * self._unit_us
    at = plan.progress(number, chain.done, chain.rate, 0)
    best = chain.state.numbers
    while at < until and not self._is_optimal(float(best[BEST])):
      chunk = plan.chunk(number, chain.done, chain.rate, self.config)
      if chunk < 1:
        break
      began = time.perf_counter()
      after = plan.progress(number, chain.done + chunk, chain.rate, chunk)
      search_kernel.anneal(
        self.step,
        chain.work,
        chain.tables,
        chain.state,
        chunk,
        hot_us * (cold_us / hot_us) ** at,
        hot_us * (cold_us / hot_us) ** min(1.0, after),
        self._penalty_us,
        *self._levels(chain, at, hot_us),
        self.config.part_share if self._is_large else 0.0,
      )
      chain.rate = chunk / max(time.perf_counter() - began, 1e-9)
      chain.done += chunk
      at = plan.progress(number, chain.done, chain.rate, 0)
      self._tell(chain, improved)

  @property
  def _is_large(self) -> bool:
    return self._num_movable >= self.config.coarse_groups

  @property
  def _stages(self) -> tuple[float, ...]:
    """Shares of a round after which chains meet, and its end."""
    return (*self.config.meetings, 1.0) if self._is_large else (1.0,)

  def _meet(self) -> None:
    """The chain that is worst off goes on from where the best one is."""
    ranked = sorted(self._chains, key=lambda c: c.state.numbers[CURRENT])
    if len(ranked) > 1:
      self._restart(ranked[-1], ranked[0].state.devices)

  def _levels(
    self, chain: _Chain, progress: float, hot_us: float
  ) -> tuple[int, int]:
    """Least and greatest level of the clusters to move.

    A small graph uses all levels all the time. A large one begins with few
    large clusters: single groups would scatter while it is hot.
    """
    top = len(chain.tables.level_offsets) - 2
    if not self._is_large:
      return 0, top
    coarse = max(0.0, 1.0 - progress / self.config.coarse_share)
    if hot_us < self._hot_us:
      coarse *= self.config.warm_levels
    lowest = round(max(0, top - self.config.window) * coarse)
    return lowest, min(top, lowest + self.config.window)

  def _tell(self, chain: _Chain, improved: Improved | None) -> None:
    """Reports a chain's best, if it is the best that any has found."""
    with self._lock:
      found = float(chain.state.numbers[BEST])
      if found < self._told_us:
        self._told_us = found
        if improved is not None:
          improved(found, self.evaluations)

  def _collect(self) -> None:
    """Takes over the best of all chains; of equals, that of the first.

    Called between rounds only: which chain is first to find a step time
    depends on the machine.
    """
    for chain in self._chains:
      found = float(chain.state.numbers[BEST])
      least = float(chain.state.numbers[LEAST])
      if found < self.best_us:
        self.best_us, self._best = found, chain.state.best.copy()
      elif self.best_us == math.inf and least < self._least_us:
        self._least_us, self._best = least, chain.state.best.copy()

  def _is_optimal(self, step_time_us: float) -> bool:
    return step_time_us <= self._bound_us * (1 + 1e-12)

  @property
  def _penalty_us(self) -> float:
    return self.config.penalty * self._unit_us
