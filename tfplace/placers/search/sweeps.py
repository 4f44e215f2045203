"""Greedy sweeps over coarse groups, from large to small.

A few hundred exact moves of coarse groups do what annealing needs tens of
thousands of simulations for. Specific to tfplace, like multilevel partitioning.
"""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.core.budget import Budget
from tfplace.placers.groups import GroupGraph
from tfplace.placers.merge import coarsen_by_merging
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.state import SearchTables, search_tables

# Constants of the sweeps of large graphs, by trial.
_SHARE = 0.5  # Fraction of the budget for all sweeps.
# Numbers of coarse groups to merge down to.
SIZES = (1024, 256, 96, 32, 8, 3)
# The first levels are swept repeatedly, with a fraction of the sweep budget.
_REPEATED_LEVELS, _REPEATED_SHARE = 4, 0.4
# Coarse groups swept between two checks of the budget, at most.
_AT_ONCE = 8
# Seconds between two checks of the clock, if one coarse group takes less.
_CHECK_S = 0.2


class Allowance:
  """Budget of each chain for sweeps, in seconds or evaluations.

  Args:
    is_done: Returns True for a chain that has nothing to gain.
  """

  def __init__(
    self,
    budget: Budget,
    chains: Sequence[Chain],
    is_done: Callable[[Chain], bool],
  ) -> None:
    self._is_done = is_done
    self._began = time.perf_counter()
    self._seconds = _SHARE * budget.left_s
    self._evaluations: float | None = None
    if budget.max_evaluations is not None:
      self._evaluations = _SHARE * budget.max_evaluations / len(chains)
    self._before = {id(chain): chain.evaluations for chain in chains}

  @property
  def is_nothing(self) -> bool:
    """True if the allowance is too small for any sweep."""
    few = self._evaluations is not None and self._evaluations < 4 * _AT_ONCE
    return self._seconds <= 0 or few

  def spent(self, chain: Chain) -> float:
    """Returns the spent fraction of the allowance of a chain."""
    if self._is_done(chain):
      return 1.0
    if self._evaluations is not None:
      used = chain.evaluations - self._before[id(chain)]
      return used / self._evaluations
    return (time.perf_counter() - self._began) / self._seconds

  def coarse_groups(self, chain: Chain) -> int:
    """Returns the number of coarse groups to sweep before the next check."""
    if self._evaluations is not None:
      return _AT_ONCE
    return max(1, min(_AT_ONCE, int(_CHECK_S * chain.rate / 2)))


def sweep_all(
  chains: Sequence[Chain],
  groups: GroupGraph,
  starts: Sequence[np.ndarray],
  *,
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
    after: Called with a chain between two checks of its allowance.
    rngs: One generator per chain, for the order of the coarse groups.
  """
  merged = coarsen_by_merging(groups, SIZES)
  tables = search_tables(groups, merged)
  jobs = [
    pool.submit(
      _Sweeps(chain, allowance, after, rng).run,
      tables,
      [*starts[i:], *starts[:i]],
    )
    for i, (chain, rng) in enumerate(zip(chains, rngs, strict=True))
  ]
  for job in jobs:
    job.result()


@dataclasses.dataclass(frozen=True)
class _Sweeps:
  """Sweeps of one chain."""

  chain: Chain
  allowance: Allowance
  after: Callable[[Chain], None]
  rng: np.random.Generator

  def run(self, merged: SearchTables, starts: Sequence[np.ndarray]) -> None:
    """Sweeps over merged groups, then over the chain's own coarse groups."""
    chain, top = self.chain, merged.top_level
    number = 0
    while number == 0 or self.allowance.spent(chain) < _REPEATED_SHARE:
      chain.restart(starts[number % len(starts)])
      for level in range(top, max(0, top - _REPEATED_LEVELS), -1):
        self._sweep(merged, level)
      number += 1
    chain.restart(chain.best)
    for level in range(top - _REPEATED_LEVELS, 0, -1):
      self._sweep(merged, level)
    for level in range(chain.tables.top_level, 0, -1):
      self._sweep(chain.tables, level)

  def _sweep(self, tables: SearchTables, level: int) -> None:
    first, last = tables.level_offsets[level : level + 2]
    coarse_groups, at = self.rng.permutation(np.arange(first, last)), 0
    while at < len(coarse_groups) and self.allowance.spent(self.chain) < 1.0:
      count = self.allowance.coarse_groups(self.chain)
      self.chain.sweep(tables, coarse_groups[at : at + count])
      self.after(self.chain)
      at += count
