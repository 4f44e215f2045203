"""Greedy sweeps over coarse groups, from large to small.

Each unit (coarse group) is tried on other devices and moves if the exact step
gets shorter. A few hundred such moves on merged groups (`coarsen`) achieve what
annealing a large graph takes tens of thousands of simulations for, or never
achieves, as on the 4-layer RNNLM. The first sweeps cover few units, decide much
and depend on their order, so they are repeated and the best result is kept. The
method is ours; it is coarse-to-fine like multilevel partitioning.
"""

import concurrent.futures
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.core.budget import Budget
from tfplace.placers.coarsen import coarsen_by_merging
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.state import SearchTables, search_tables

SIZES = (1024, 256, 96, 32, 8, 3)  # units to merge down to
COARSE = 4  # number of the first levels that are swept repeatedly
RESTARTS = 0.4  # fraction of the sweep budget for the repeated levels
_AT_ONCE = 8  # maximum number of units between checks of the budget
_LOOK_S = 0.2  # seconds between checks of the clock, if one unit takes less


class Allowance:
  """Budget of each chain for sweeps, in seconds or evaluations.

  Args:
    budget: Budget of the whole search.
    share: Fraction of the budget for sweeps.
    chains: Chains that sweep.
    is_done: Returns True for a chain that has nothing to gain.
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
    """True if the allowance is too small for any sweep."""
    few = 4 * _AT_ONCE
    return self._seconds <= 0 or (
      self._evaluations is not None and self._evaluations < few
    )

  def spent(self, chain: Chain) -> float:
    """Returns the spent fraction of the allowance of a chain."""
    if self._is_done(chain):
      return 1.0
    if self._evaluations is not None:
      used = chain.evaluations - self._before[id(chain)]
      return used / self._evaluations
    return (time.perf_counter() - self._began) / self._seconds

  def units(self, chain: Chain) -> int:
    """Returns the number of units to sweep before the next check."""
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
  """Sweeps all chains in parallel, each from a different start first.

  Args:
    chains: Chains to sweep; afterwards each holds its best placement.
    groups: Groups of the problem as the chains see it.
    starts: Placements as [num_groups] devices, used in turn.
    allowance: Budget of each chain.
    after: Called with a chain after each level.
    rngs: One generator per chain, for the order of the units.
    pool: Runs the chains.
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
  """Sweeps one chain over merged units, then over its own units."""
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
