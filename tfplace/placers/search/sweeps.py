"""Greedy sweeps over whole units, from the largest to small ones.

Every unit is tried elsewhere and stays where the exact step is shorter.
Annealing a large graph takes tens of thousands of simulations to get as far as
a few hundred of these, if the units are merged (`coarsen`); on 4-layer RNNLM
it never did. The first sweeps, of few units, decide much and depend on their
order, so they are run several times, and the best goes on. (Ours; coarse to
fine as in multilevel partitioning.)
"""

import concurrent.futures
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.core.protocols import Budget
from tfplace.placers.coarsen import coarsen_by_merging
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.state import SearchTables, search_tables

SIZES = (1024, 256, 96, 32, 8, 3)  # units to merge down to
COARSE = 4  # of these levels, how many are swept several times
RESTARTS = 0.4  # share of the sweeps' budget for that
_AT_ONCE = 8  # units between looks at the budget, at most
_LOOK_S = 0.2  # between looks at the clock, where one unit takes less


class Allowance:
  """What each chain may spend on sweeps: seconds, or evaluations.

  Args:
    budget: of the whole search.
    share: of it, for the sweeps.
    chains: that sweep.
    is_done: of a chain, whether it has nothing to gain.
  """

  def __init__(
    self,
    budget: Budget,
    share: float,
    chains: Sequence[Chain],
    is_done: Callable[[Chain], bool],
  ) -> None:
    self._is_done = is_done
    self._began = time.perf_counter()
    self._seconds = share * budget.left_s
    self._evaluations: float | None = None
    if budget.max_evaluations is not None:
      self._evaluations = share * budget.max_evaluations / len(chains)
    self._before = {id(chain): chain.evaluations for chain in chains}

  @property
  def is_nothing(self) -> bool:
    """Whether it is too little for anything."""
    few = 4 * _AT_ONCE
    return self._seconds <= 0 or (
      self._evaluations is not None and self._evaluations < few
    )

  def spent(self, chain: Chain) -> float:
    """The share of its allowance that a chain has used up."""
    if self._is_done(chain):
      return 1.0
    if self._evaluations is not None:
      used = chain.evaluations - self._before[id(chain)]
      return used / self._evaluations
    return (time.perf_counter() - self._began) / self._seconds

  def units(self, chain: Chain) -> int:
    """How many units a chain sweeps before it looks at what is left."""
    if self._evaluations is not None:
      return _AT_ONCE
    return max(1, min(_AT_ONCE, int(_LOOK_S * chain.rate / 2)))


def sweep_all(
  chains: Sequence[Chain],
  groups: GroupGraph,
  starts: Sequence[np.ndarray],
  allowance: Allowance,
  after: Callable[[Chain], None],
  rngs: Sequence[np.random.Generator],
  pool: concurrent.futures.Executor,
) -> None:
  """Sweeps with all chains at once, each from another start first.

  Args:
    chains: what sweeps; each has its best then.
    groups: of the problem, as the chains see it.
    starts: [num_groups] devices each, to start from in turn.
    allowance: what each chain may spend.
    after: called with a chain after each level.
    rngs: order the units, one per chain.
    pool: runs them.
  """
  tables = search_tables(groups, coarsen_by_merging(groups, SIZES))
  jobs = [
    pool.submit(
      _sweep, chain, tables, [*starts[i:], *starts[:i]], allowance, after, rng
    )
    for i, (chain, rng) in enumerate(zip(chains, rngs, strict=True))
  ]
  for job in jobs:
    job.result()


def _sweep(
  chain: Chain,
  merged_tables: SearchTables,
  starts: Sequence[np.ndarray],
  allowance: Allowance,
  after: Callable[[Chain], None],
  rng: np.random.Generator,
) -> None:
  """Sweeps one chain; the units that it anneals come last."""
  top = merged_tables.top_level
  coarse = range(top, max(0, top - COARSE), -1)
  number = 0
  while number == 0 or allowance.spent(chain) < RESTARTS:
    chain.restart(starts[number % len(starts)])
    for level in coarse:
      _sweep_level(chain, merged_tables, level, allowance, rng)
      after(chain)
    number += 1
  chain.restart(chain.best)
  fine = [(merged_tables, level) for level in range(top - COARSE, 0, -1)]
  others = range(chain.tables.top_level, 0, -1)
  for tables, level in [*fine, *((chain.tables, level) for level in others)]:
    _sweep_level(chain, tables, level, allowance, rng)
    after(chain)


def _sweep_level(
  chain: Chain,
  tables: SearchTables,
  level: int,
  allowance: Allowance,
  rng: np.random.Generator,
) -> None:
  units = rng.permutation(np.arange(*tables.level_offsets[level : level + 2]))
  at = 0
  while at < len(units) and allowance.spent(chain) < 1.0:
    count = allowance.units(chain)
    chain.sweep(tables, units[at : at + count])
    at += count
