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

from tfplace.placers.base import Budget
from tfplace.placers.clusters import clusters_by_edges, clusters_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search_chain import Chain
from tfplace.placers.search_plan import Plan, SearchConfig, scale_of
from tfplace.placers.search_tables import search_state, search_tables
from tfplace.placers.time_order import time_order
from tfplace.simulate import engine

Improved = Callable[[float, int], None]


class Search:
  """A search over the placements of one problem.

  Args:
    groups: of the problem.
    seed: of its choices.
    config: how it spends its budget.
    like: [num_groups] devices of a placement like those that it will look at;
      these are simulated faster.
    prior: see `search_tables`; None is nobody's.
  """

  def __init__(
    self,
    groups: GroupGraph,
    seed: int,
    config: SearchConfig | None = None,
    like: np.ndarray | None = None,
    prior: np.ndarray | None = None,
  ) -> None:
    self.config = config or SearchConfig()
    self._order = time_order(groups, like)
    groups = self._order.groups
    if prior is not None:
      prior = self._order.enter(prior)
    # Chains that see a graph in different ways fail in different ways.
    tables = [
      search_tables(groups, find(groups), prior)
      for find in (clusters_by_work, clusters_by_edges)
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
    self._best: np.ndarray | None = None
    self.best_us = math.inf
    self._least_us = math.inf
    self._told_us = math.inf
    self._lock = threading.Lock()
    nothing = np.zeros(groups.num_groups, np.int32)
    seeds = np.random.SeedSequence(seed).spawn(self.config.chains)
    self._chains = [
      Chain(
        search_state(groups, nothing, child), tables[i % 2], step, self._scale
      )
      for i, child in enumerate(seeds)
    ]

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
    plan = self._plan(starts, budget)
    with concurrent.futures.ThreadPoolExecutor(len(self._chains)) as pool:
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

  def _plan(self, starts: Sequence[np.ndarray], budget: Budget) -> Plan:
    """Evaluates the starts, and divides the budget into rounds."""
    began = time.perf_counter()
    for start in starts:
      self._chains[0].restart(start)
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
    if self._scale.is_large and number == 0:
      turn = 0  # cooled slowly, the chains part anyway
    if turn % 2 == 0 and number > 0 and self._best is not None:
      chain.restart(self._best)
      return self.config.warm * self._scale.hot_us
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

    for until in self._scale.stages:
      jobs = [
        pool.submit(chain.anneal, plan, number, hot, until, tell)
        for chain, hot in zip(self._chains, hot_us, strict=True)
      ]
      for job in jobs:
        job.result()
      if until < 1.0:
        self._meet()
    self._collect()

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
