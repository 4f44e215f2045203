"""Greedy sweeps over coarse groups, from large to small.

A few hundred exact moves of coarse groups do what annealing needs tens of
thousands of simulations for. Specific to tfplace, like multilevel partitioning.
"""

import concurrent.futures
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfplace.core.budget import Budget
from tfplace.placers.groups import GroupGraph
from tfplace.placers.merge import coarsen_by_merging
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.config import SearchConfig
from tfplace.placers.search.state import SearchTables, search_tables


class Allowance:
  """Budget of each chain for sweeps, in seconds or evaluations.

  Args:
    is_done: Returns True for a chain that has nothing to gain.
  """

  def __init__(
    self,
    budget: Budget,
    config: SearchConfig,
    chains: Sequence[Chain],
    is_done: Callable[[Chain], bool],
  ) -> None:
    self.config = config
    self._is_done = is_done
    self._began = time.perf_counter()
    self._seconds = config.sweep_share * budget.left_s
    self._evaluations: float | None = None
    if budget.max_evaluations is not None:
      self._evaluations = (
        config.sweep_share * budget.max_evaluations / len(chains)
      )
    self._before = {id(chain): chain.evaluations for chain in chains}

  @property
  def is_nothing(self) -> bool:
    """True if the allowance is too small for any sweep."""
    few = 4 * self.config.sweep_at_once
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

  def coarse_groups(self, chain: Chain) -> int:
    """Returns the number of coarse groups to sweep before the next check."""
    if self._evaluations is not None:
      return self.config.sweep_at_once
    in_time = int(self.config.sweep_check_s * chain.rate / 2)
    return max(1, min(self.config.sweep_at_once, in_time))


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
    after: Called with a chain between two checks of its allowance.
    rngs: One generator per chain, for the order of the coarse groups.
  """
  merged = coarsen_by_merging(groups, allowance.config.sweep_sizes)
  tables = search_tables(groups, merged)
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
  """Sweeps one chain over merged groups, then over its own coarse groups."""
  top, repeated = merged_tables.top_level, allowance.config.repeated_levels
  coarse = range(top, max(0, top - repeated), -1)
  number = 0
  while number == 0 or allowance.spent(chain) < allowance.config.repeated_share:
    chain.restart(starts[number % len(starts)])
    for level in coarse:
      _sweep_level(chain, merged_tables, level, allowance, after, rng)
    number += 1
  chain.restart(chain.best)
  fine = [(merged_tables, level) for level in range(top - repeated, 0, -1)]
  others = range(chain.tables.top_level, 0, -1)
  for tables, level in [*fine, *((chain.tables, level) for level in others)]:
    _sweep_level(chain, tables, level, allowance, after, rng)


def _sweep_level(
  chain: Chain,
  tables: SearchTables,
  level: int,
  allowance: Allowance,
  after: Callable[[Chain], None],
  rng: np.random.Generator,
) -> None:
  coarse_groups = rng.permutation(
    np.arange(*tables.level_offsets[level : level + 2])
  )
  at = 0
  while at < len(coarse_groups) and allowance.spent(chain) < 1.0:
    count = allowance.coarse_groups(chain)
    chain.sweep(tables, coarse_groups[at : at + count])
    after(chain)
    at += count
