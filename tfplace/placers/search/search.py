"""Parallel search: anneals several chains in rounds.

Even rounds continue from the best placement, odd ones from a start. On a large
graph each chain sweeps, then cools once from coarse groups to single groups;
the worst chain twice takes over the best placement. Deterministic if
evaluations are the budget.
"""

import concurrent.futures
import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.core.budget import Budget
from tfplace.placers.coarsen import coarsen_by_edges, coarsen_by_work
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.guide import Proposer
from tfplace.placers.search.proposals import Proposals
from tfplace.placers.search.schedule import Rounds, SearchConfig, scale_of
from tfplace.placers.search.state import search_state, search_tables, time_order
from tfplace.placers.search.sweeps import SIZES, Allowance, sweep_all
from tfplace.simulate import engine

Improved = Callable[[float, int], None]
# Evaluations per round, group and chain. This and what follows is by trial.
_EVALUATIONS_PER_GROUP = 400.0
# If the budget has a gap, the patience as a share of all rounds, at least so
# many; a small graph then has at least so many rounds.
_PATIENCE_SHARE, _LEAST_PATIENCE, _LEAST_ROUNDS = 1 / 3, 2, 6
# Factors on the first temperature of a round: from the best placement, and
# after the sweeps.
_WARM, _SWEPT = 0.4, 0.1
# Step time, relative to the best start, up to which a start is swept.
_NEAR = 1.1


class Search:
  """Search over the placements of one problem.

  Args:
    like: [num_groups] devices. Placements similar to these simulate faster.
    proposer: Proposes further moves if seconds are the budget, see
      `proposals`; None for none.
  """

  def __init__(
    self,
    groups: GroupGraph,
    seed: int,
    *,
    config: SearchConfig | None = None,
    like: np.ndarray | None = None,
    proposer: Proposer | None = None,
  ) -> None:
    self._config = config = config or SearchConfig()
    self._groups = groups
    self._proposer = proposer
    self._proposals: list[Proposals] = []
    self._order = time_order(groups, like)
    groups = self._order.groups
    # Different coarsenings make the chains fail in different ways.
    tables = [
      search_tables(groups, find(groups))
      for find in (coarsen_by_work, coarsen_by_edges)
    ]
    self._num_movable = len(tables[0].movable)
    step = engine.pack(groups.problem, self._order.position)
    longest_us = groups.problem.fastest_us + step.tail_us
    is_large = self._num_movable >= config.coarse_groups
    self._scale = scale_of(groups, is_large, longest_us.max(initial=0.0))
    self._swept: list[np.ndarray] | None = None
    self._best: np.ndarray | None = None
    self.best_us = math.inf
    self._least_us = math.inf
    self._reported_us = math.inf
    self._improved: Improved | None = None
    self._lock = threading.Lock()
    nothing = np.zeros(groups.num_groups, np.int32)
    seeds = np.random.SeedSequence(seed).spawn(config.chains)
    self._chains = [
      Chain(search_state(groups, nothing, s), tables[i % 2], step, self._scale)
      for i, s in enumerate(seeds)
    ]
    self._rngs = [np.random.default_rng(s.spawn(1)[0]) for s in seeds]

  @property
  def best(self) -> np.ndarray | None:
    """Best placement as [num_groups] devices; None if there is none."""
    return None if self._best is None else self._order.leave(self._best)

  @property
  def evaluations(self) -> int:
    """Number of simulated placements so far."""
    return sum(chain.evaluations for chain in self._chains)

  def run(
    self,
    starts: Sequence[np.ndarray],
    budget: Budget,
    improved: Improved | None = None,
    other: np.ndarray | None = None,
  ) -> None:
    """Searches until the budget is spent and sets `best`.

    Args:
      starts: Allowed placements as [num_groups] devices, the most promising
        first.
      budget: Remaining seconds, or placements for this call.
      improved: Called with each new best step time and the evaluations so far.
      other: Start of another origin, such as a policy's. It is swept whatever
        its step time is, and whatever it is, the best starts are swept, too.
    """
    if not self._num_movable or not len(starts):
      return
    self._improved = improved
    if self._proposer is not None and budget.is_timed:
      known = self._proposer, self._groups, self._order
      self._proposals = [
        Proposals(*known, rng, chain)
        for rng, chain in zip(self._rngs, self._chains, strict=True)
      ]
    starts = [self._order.enter(start) for start in starts]
    before, found_us = self.evaluations, self._evaluate(starts)
    if self._scale.is_within(self.best_us, budget.gap):
      return
    near_us = _NEAR * min(found_us)
    near = [s for s, us in zip(starts, found_us, strict=True) if us <= near_us]
    if other is not None:
      more = self._order.enter(other)
      self._evaluate([more])
      near.insert(0, more)
      starts.insert(0, more)
    with concurrent.futures.ThreadPoolExecutor(len(self._chains)) as pool:
      self._sweep(pool, near, budget.minus(self.evaluations - before))
      rounds = self._rounds(budget.minus(self.evaluations - before))
      patience, fruitless = self._patience(rounds, budget), 0
      for number in range(rounds.count):
        before_us = self.best_us
        self._round(pool, rounds, number, starts, self._done(budget))
        fruitless = 0 if self.best_us < before_us else fruitless + 1
        if (
          budget.is_cancelled
          or self._scale.is_within(self.best_us, budget.gap)
          or fruitless >= patience
        ):
          break

  def _patience(self, rounds: Rounds, budget: Budget) -> int:
    """Returns the rounds without improvement before the search ends."""
    patience = self._config.patience
    if not budget.gap:
      return patience
    share = math.ceil(_PATIENCE_SHARE * rounds.count)
    return min(patience, max(_LEAST_PATIENCE, share))

  def _evaluate(self, starts: Sequence[np.ndarray]) -> list[float]:
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

  def _sweep(
    self,
    pool: concurrent.futures.Executor,
    starts: Sequence[np.ndarray],
    budget: Budget,
  ) -> None:
    self._swept = None
    is_done = self._done(budget)
    allowance = Allowance(budget, self._chains, is_done)
    groups = self._order.groups
    can_merge = groups.num_groups > min(SIZES)
    if not self._scale.is_large or not can_merge or allowance.is_nothing:
      return
    sweep_all(
      self._chains,
      groups,
      starts,
      allowance=allowance,
      after=self._after_sweep,
      rngs=self._rngs,
      pool=pool,
    )
    for chain in self._chains:
      chain.guide.tally[:] = 0.0  # Annealing counts other gains.
    self._collect()
    self._swept = [chain.best.copy() for chain in self._chains]

  def _rounds(self, budget: Budget) -> Rounds:
    quota, left_s = None, budget.left_s
    if budget.max_evaluations is not None:
      quota = budget.max_evaluations // len(self._chains)
    expected = self._chains[0].rate * left_s if quota is None else quota
    wanted = _EVALUATIONS_PER_GROUP * self._num_movable
    count = max(1, round(expected / wanted))
    if budget.gap and not self._scale.is_large:
      count = max(count, _LEAST_ROUNDS)
    return Rounds(count, quota, time.perf_counter(), left_s)

  def _begin(
    self, index: int, number: int, starts: Sequence[np.ndarray]
  ) -> float:
    """Restarts a chain for a round and returns its first temperature."""
    chain, warmth, turn = self._chains[index], 1.0, index + number
    devices = starts[turn % len(starts)]
    if self._scale.is_large and number == 0:
      # Slow cooling separates the chains even if they share a start.
      devices = starts[0]
      if self._swept is not None:
        devices, warmth = self._swept[index], _SWEPT
    elif turn % 2 == 0 and number > 0 and self._best is not None:
      devices, warmth = self._best, _WARM
    chain.done = 0
    chain.restart(devices)
    self._skip(chain)
    return warmth * self._scale.hot_us

  def _round(
    self,
    pool: concurrent.futures.Executor,
    rounds: Rounds,
    number: int,
    starts: Sequence[np.ndarray],
    is_done: Callable[[Chain], bool],
  ) -> None:
    # All chains start before any of them improves the best placement.
    hot_us = [self._begin(i, number, starts) for i in range(len(self._chains))]
    for until in self._scale.stages:
      jobs = [
        pool.submit(
          chain.anneal, rounds, number, hot, until, is_done, self._annealed
        )
        for chain, hot in zip(self._chains, hot_us, strict=True)
      ]
      for job in jobs:
        job.result()
      if until < 1.0:
        self._meet()
    self._collect()

  def _done(self, budget: Budget) -> Callable[[Chain], bool]:
    """Returns a function that is True once the budget's gap is met.

    It is also True once the budget is cancelled.

    With a budget of evaluations only the chain's own best counts, because the
    order of discovery depends on the machine.
    """

    def is_done(chain: Chain) -> bool:
      known = self._chains if budget.is_timed else [chain]
      return budget.is_cancelled or any(
        self._scale.is_within(other.best_us, budget.gap) for other in known
      )

    return is_done

  def _meet(self) -> None:
    """Continues the worst chain from the placement of the best."""
    ranked = sorted(self._chains, key=lambda chain: chain.current_us)
    if len(ranked) > 1:
      ranked[-1].restart(ranked[0].devices)
      self._skip(ranked[-1])

  def _skip(self, chain: Chain) -> None:
    if self._proposals:
      self._proposals[self._chains.index(chain)].skip(chain)

  def _after_sweep(self, chain: Chain) -> None:
    if self._proposals:
      self._proposals[self._chains.index(chain)].after_sweep(chain)
    self._report(chain)

  def _annealed(self, chain: Chain) -> None:
    if self._proposals:
      self._proposals[self._chains.index(chain)].after_chunk(chain)
    self._report(chain)

  def _report(self, chain: Chain) -> None:
    with self._lock:
      found = chain.best_us
      if found < self._reported_us:
        self._reported_us = found
        if self._improved is not None:
          self._improved(found, self.evaluations)

  def _collect(self) -> None:
    """Takes over the best of all chains; ties go to the first chain.

    Runs only between rounds: the order of discovery depends on the machine.
    """
    for chain in self._chains:
      if chain.best_us < self.best_us:
        self.best_us, self._best = chain.best_us, chain.best.copy()
      elif self.best_us == math.inf and chain.least_us < self._least_us:
        self._least_us, self._best = chain.least_us, chain.best.copy()
