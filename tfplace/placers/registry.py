"""The registry of strategies; placers are imported on first use.

A strategy takes one line: the "module:class" of its placer or, for a learned
strategy, the package with its `tfplace.learned.Method`. Strings avoid importing
these packages and TensorFlow here.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Placer
from tfplace.errors import TfplaceError

_PLACERS: Mapping[str, str] = {
  "single": "tfplace.placers.rules.single:SinglePlacer",
  "cpu": "tfplace.placers.rules.single:CpuPlacer",
  "blocks": "tfplace.placers.rules.single:BlocksPlacer",
  "expert": "tfplace.placers.rules.expert:ExpertPlacer",
  "axes": "tfplace.placers.rules.axes:AxesPlacer",
  "data_parallel": "tfplace.placers.rules.grid:DataParallelPlacer",
  "pipeline": "tfplace.placers.rules.grid:PipelinePlacer",
  "hybrid": "tfplace.placers.rules.grid:HybridPlacer",
  "m_topo": "tfplace.placers.list_scheduling.placers:MTopoPlacer",
  "m_etf": "tfplace.placers.list_scheduling.placers:MEtfPlacer",
  "m_sct": "tfplace.placers.list_scheduling.placers:MSctPlacer",
  "heft": "tfplace.placers.list_scheduling.placers:HeftPlacer",
  "metis": "tfplace.placers.partition.metis:MetisPlacer",
  "scotch": "tfplace.placers.partition.scotch:ScotchPlacer",
  "annealing": "tfplace.placers.search.annealing:AnnealingPlacer",
  "brkga": "tfplace.placers.search.brkga:BrkgaPlacer",
  "exact": "tfplace.placers.exact.placer:ExactPlacer",
}
# Learned strategies: packages with a table `METHODS`.
LEARNED: Mapping[str, str] = {
  "gdp": "tfplace.learned.gdp",
  "placeto": "tfplace.learned.placeto",
  "hierarchical": "tfplace.learned.sequence",
  "rnn": "tfplace.learned.sequence",
  "ordered": "tfplace.learned.ordered",
}
_AUTO = "tfplace.placers.auto:AutoPlacer"
STRATEGIES = (*_PLACERS, *LEARNED, "auto")
# Strategies without search or policy, roughly by speed. `auto` and annealing
# run them, and reports list them, in this order.
CLASSICAL = (
  "single",
  "cpu",
  "blocks",
  "expert",
  "axes",
  "metis",
  "scotch",
  "m_topo",
  "heft",
  "m_etf",
  "m_sct",
)
# Strategy to start with on a graph with at least this many ops, where the
# others take seconds and a search may not get far.
PARTITION, LARGE = "metis", 200_000
# Further strategies for microbatched steps.
GRIDS = ("data_parallel", "pipeline", "hybrid")
# Learned strategies that `auto` runs; the others serve for comparison.
ASKED = ("ordered",)
# Learned strategies that `auto` tries with a user's own policy.
OWN = ("ordered", "gdp")
# Strategies that can start from a given placement.
SEARCHES = ("annealing", "auto", "ordered")
# Default strategies.
READY = tuple(
  name
  for name in STRATEGIES
  if name not in ("exact", *GRIDS) and (name not in LEARNED or name in ASKED)
)


def classical(problem: Problem) -> tuple[str, ...]:
  """Returns the strategies without search or policy for a problem, in order.

  Even the shortest search runs the first one.
  """
  if problem.graph.num_microbatches < 2:
    if problem.graph.num_ops < LARGE:
      return CLASSICAL
    return (PARTITION, *(name for name in CLASSICAL if name != PARTITION))
  return (GRIDS[0], CLASSICAL[0], *GRIDS[1:], *CLASSICAL[1:])


def get_placer(
  strategy: str,
  policy: str | None = None,
  start: np.ndarray | None = None,
  tolerance: float | None = None,
) -> Placer:
  """Creates the placer of a strategy.

  Args:
    strategy: one of `STRATEGIES`.
    policy: directory of an exported policy, for a learned strategy or `auto`;
      None means the policy that ships with the package.
    start: [num_starts, num_ops] devices of placements; a strategy in `SEARCHES`
      starts from the best.
    tolerance: see `AutoPlacer`; other strategies ignore it.

  Raises:
    TfplaceError: the strategy is unknown, does not take a policy, or cannot
      start from a placement.
  """
  placer = _placer_type(strategy)
  options: dict[str, Any] = {}
  if policy is not None:
    if strategy != "auto" and strategy not in LEARNED:
      raise TfplaceError(
        f"strategy {strategy!r} uses no policy, yet {policy!r} was given"
      )
    options["policy"] = policy
  if start is not None:
    check_searches(strategy)
    options["start"] = start
  if tolerance is not None and strategy == "auto":
    options["tolerance"] = tolerance
  return placer(**options)


def check_searches(strategy: str) -> None:
  """Raises TfplaceError unless a strategy can start from a given placement."""
  if strategy not in SEARCHES:
    raise TfplaceError(
      f"strategy {strategy!r} cannot begin from a placement;"
      f" {', '.join(SEARCHES[:-1])} and {SEARCHES[-1]} can"
    )


def _placer_type(strategy: str) -> Callable[..., Placer]:
  if strategy in LEARNED:
    package = importlib.import_module(LEARNED[strategy])
    place = package.METHODS[strategy].placer
  elif strategy == "auto":
    place = _AUTO
  elif strategy in _PLACERS:
    place = _PLACERS[strategy]
  else:
    raise TfplaceError(
      f"unknown strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}"
    )
  module, name = place.split(":")
  return getattr(importlib.import_module(module), name)
