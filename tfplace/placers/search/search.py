"""Runs chains of the compiled search in threads, round after round.

Each round anneals every chain from hot to cold. Even turns continue from the
best placement so far, odd ones from one of the given starts; rounds are short
where the graph is small, so that a small graph gets many starts. On a large one
each chain begins with greedy sweeps (`sweeps`) and goes on from what they find;
it is cooled once, slowly, from large units to single groups, by chains that
coarsen it in different ways: which way serves a graph shows only as it cools,
so twice on the way the chain that is worst off takes over the best one's
placement. With a number of evaluations as the budget, the result depends on
the seed alone; with seconds, on the machine too.
"""

import concurrent.futures
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.core.op_graph import renumber
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget
from tfplace.placers.coarsen import coarsen_by_edges, coarsen_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.config import (
  EVALUATIONS_PER_GROUP,
  SWEEP_SHARE,
  SWEPT,
  WARM,
  Plan,
  SearchConfig,
  scale_of,
)
from tfplace.placers.search.state import search_state, search_tables
from tfplace.placers.search.sweeps import SIZES, Allowance, sweep_all
from tfplace.simulate import engine

Improved = Callable[[float, int], None]
NEAR = 1.1  # sweeps begin from starts that take so much longer than the best


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
      for find in (coarsen_by_work, coarsen_by_edges)
    ]
    self._num_movable = len(tables[0].movable)
    step = engine.pack(groups.problem, self._order.position)
    longest_us = groups.problem.fastest_us + step.tail_us
    self._scale = scale_of(
      groups,
      self.config,
      self._num_movable,
      float(longest_us.max(initial=0.0)),
    )
    self._swept: list[np.ndarray] | None = None
    self._best: np.ndarray | None = None
    self.best_us = math.inf
    self._least_us = math.inf
    self._told_us = math.inf
    self._lock = threading.Lock()
    nothing = np.zeros(groups.num_groups, np.int32)
    seeds = np.random.SeedSequence(seed).spawn(self.config.chains)
    self._chains = [
      Chain(
        search_state(groups, nothing, child),
        tables[i % 2],
        step,
        self._scale,
      )
      for i, child in enumerate(seeds)
    ]
    self._rngs = [np.random.default_rng(child.spawn(1)[0]) for child in seeds]

  @property
  def best(self) -> np.ndarray | None:
    """[num_groups] devices of the best placement, None before the first."""
    return None if self._best is None else self._order.leave(self._best)

  @property
  def evaluations(self) -> int:
    """Placements simulated so far."""
    return sum(chain.evaluations for chain in self._chains)

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
    before, found_us = self.evaluations, self._evaluate(starts)
    if self._scale.is_optimal(self.best_us):
      return
    near_us = NEAR * min(found_us)
    near = [s for s, us in zip(starts, found_us, strict=True) if us <= near_us]
    with concurrent.futures.ThreadPoolExecutor(len(self._chains)) as pool:
      self._sweep(pool, near, self._left(budget, before), improved)
      plan = self._plan(self._left(budget, before))
      fruitless = 0
      for number in range(plan.rounds):
        before_us = self.best_us
        # The chains of a round start before any of them improves the best.
        hot_us = [self._begin(i, number, starts) for i in range(plan.chains)]
        self._round(pool, plan, number, hot_us, improved)
        fruitless = 0 if self.best_us < before_us else fruitless + 1
        if (
          self._scale.is_optimal(self.best_us)
          or fruitless >= self.config.patience
        ):
          break

  def _evaluate(self, starts: Sequence[np.ndarray]) -> list[float]:
    """Evaluates the starts: what `Chain.current_us` is on each."""
    began = time.perf_counter()
    chain, found_us = self._chains[0], []
    for start in starts:
      chain.restart(start)
      found_us.append(chain.current_us)
    self._collect()
    rate = len(starts) / max(time.perf_counter() - began, 1e-9)
    for chain in self._chains:
      chain.rate = rate
    return found_us

  def _left(self, budget: Budget, before: int) -> Budget:
    """What is left of a budget, of which evaluations count from `before` on."""
    if budget.max_evaluations is None:
      return budget
    used = self.evaluations - before
    return dataclasses.replace(
      budget, max_evaluations=max(0, budget.max_evaluations - used)
    )

  def _sweep(
    self,
    pool: concurrent.futures.Executor,
    starts: Sequence[np.ndarray],
    budget: Budget,
    improved: Improved | None,
  ) -> None:
    """Sweeps with all chains at once, each from another start first."""
    self._swept = None
    allowance = Allowance(budget, SWEEP_SHARE, self._chains)
    can_merge = self._order.groups.num_groups > min(SIZES)
    if not self._scale.is_large or not can_merge or allowance.is_nothing:
      return

    def tell(chain: Chain) -> None:
      self._tell(chain, improved)

    is_done = self._done(budget.max_evaluations is None)

    def spent(chain: Chain) -> float:
      return 1.0 if is_done(chain) else allowance.spent(chain)

    sweep_all(
      self._chains, self._order.groups, starts, spent, tell, self._rngs, pool
    )
    self._collect()
    self._swept = [chain.best.copy() for chain in self._chains]

  def _plan(self, budget: Budget) -> Plan:
    """Divides the budget into rounds."""
    count, rate = len(self._chains), self._chains[0].rate
    quota = None
    if budget.max_evaluations is not None:
      quota = budget.max_evaluations // count
    expected = rate * max(0.0, budget.left_s) if quota is None else quota
    wanted = EVALUATIONS_PER_GROUP * self._num_movable
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
    if self._scale.is_large and number == 0:
      # From what its own sweeps have found: cooled slowly, chains part anyway.
      chain.restart(starts[0] if self._swept is None else self._swept[index])
      warmth = 1.0 if self._swept is None else SWEPT
      return warmth * self._scale.hot_us
    if turn % 2 == 0 and number > 0 and self._best is not None:
      chain.restart(self._best)
      return WARM * self._scale.hot_us
    chain.restart(starts[turn % len(starts)])
    return self._scale.hot_us

  def _round(
    self,
    pool: concurrent.futures.Executor,
    plan: Plan,
    number: int,
    hot_us: Sequence[float],
    improved: Improved | None,
  ) -> None:
    """Anneals all chains at once, from each one's temperature."""

    def tell(chain: Chain) -> None:
      self._tell(chain, improved)

    is_done = self._done(plan.quota is None)
    for until in self._scale.stages:
      jobs = [
        pool.submit(chain.anneal, plan, number, hot, until, is_done, tell)
        for chain, hot in zip(self._chains, hot_us, strict=True)
      ]
      for job in jobs:
        job.result()
      if until < 1.0:
        self._meet()
    self._collect()

  def _done(self, is_timed: bool) -> Callable[[Chain], bool]:
    """Whether a chain has nothing to gain: an optimum is known.

    Where evaluations count, its own best decides: when another chain finds one
    depends on the machine.
    """

    def is_done(chain: Chain) -> bool:
      known = self._chains if is_timed else [chain]
      return any(self._scale.is_optimal(other.best_us) for other in known)

    return is_done

  def _meet(self) -> None:
    """The chain that is worst off goes on from where the best one is."""
    ranked = sorted(self._chains, key=lambda chain: chain.current_us)
    if len(ranked) > 1:
      ranked[-1].restart(ranked[0].devices)

  def _tell(self, chain: Chain, improved: Improved | None) -> None:
    """Reports a chain's best, if it is the best that any has found."""
    with self._lock:
      found = chain.best_us
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
      if chain.best_us < self.best_us:
        self.best_us, self._best = chain.best_us, chain.best.copy()
      elif self.best_us == math.inf and chain.least_us < self._least_us:
        self._least_us, self._best = chain.least_us, chain.best.copy()


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

  Ops that run after each other then lie beside each other in memory: a
  simulation of 54,019 ops takes 0.6 to 0.8 of the time, for placements like
  the one whose order it is. The engine is told the positions that the rules
  speak of, so that what is simulated stays the same to the last digit.

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
  graph = renumber(problem.graph, order)
  inner = Problem(graph, problem.cluster, problem.proven_us)
  group_at = np.empty(groups.num_groups, np.int64)
  group_at[problem.group_of[order]] = inner.group_of
  return TimeOrder(GroupGraph(inner), order, group_at)
