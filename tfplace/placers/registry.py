"""Strategy names and the placers behind them, loaded only when asked for.

A new strategy is one line: "module:class" of its placer or, where it learns,
the package that describes it (`tfplace.learned.Method`). They are strings, so
that neither that package nor TensorFlow is imported here.
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
# Those that learn: packages with a table `METHODS`.
LEARNED: Mapping[str, str] = {
  "gdp": "tfplace.learned.gdp",
  "placeto": "tfplace.learned.placeto",
  "hierarchical": "tfplace.learned.sequence",
  "rnn": "tfplace.learned.sequence",
  "ordered": "tfplace.learned.gdp",
}
_AUTO = "tfplace.placers.auto:AutoPlacer"
STRATEGIES = (*_PLACERS, *LEARNED, "auto")
# What needs no search and no policy, roughly the quickest first: in this order
# `auto` and annealing try them, and reports show them.
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
# The one of them to begin with where a graph has so many ops that others, too,
# take seconds, and a search may not get far.
PARTITION, LARGE = "metis", 200_000
# Further ones for a step in microbatches.
GRIDS = ("data_parallel", "pipeline", "hybrid")
# The learned ones that `auto` asks; the others are there to compare with.
ASKED = ("ordered",)
# Those that it asks with a policy of a user's own, which is of one of them.
OWN = ("ordered", "gdp")
# What can begin from a given placement.
SEARCHES = ("annealing", "auto", "ordered")
# What competes where nothing is said.
READY = tuple(
  name
  for name in STRATEGIES
  if name not in ("exact", *GRIDS) and (name not in LEARNED or name in ASKED)
)


def classical(problem: Problem) -> tuple[str, ...]:
  """What needs no search and no policy for this problem, in order.

  The first one runs in the shortest of searches, too.
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
  """The placer of a strategy.

  Args:
    strategy: one of `STRATEGIES`.
    policy: directory of an exported policy, for a learned strategy or `auto`;
      None is the policy that ships with the package.
    start: [num_starts, num_ops] devices of placements, of which the best is to
      be searched from, for a strategy of `SEARCHES`.
    tolerance: as `AutoPlacer` has it; other strategies have no use for it.

  Raises:
    TfplaceError: unknown strategy, a policy for one that learns nothing, or a
      start for one that does not search.
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
  """Checks that a strategy can begin from a given placement.

  Raises:
    TfplaceError: it cannot; names those that can.
  """
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
