"""The table of strategies; a placer is imported when it first runs."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tfplace.errors import TfplaceError
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Placer
from tfplace.placers.one_shot import OneShotPlacer, Repair


@dataclasses.dataclass(frozen=True)
class Strategy:
  """A strategy, one line of the table.

  Attributes:
    name: name that users give.
    path: "module" of a one-shot placer, a function of the strategy's name (see
      `one_shot`); "module:class" of another placer; of a learned strategy, the
      package with its `tfplace.learned.Method`.
    family: folder of its placer, "learned" or "auto".
    in_auto: True if `auto` runs it by default (classical and learned
      strategies, and annealing).
    needs_microbatches: True if it places only microbatched steps.
    accepts_start: True if it can start from given placements.
    takes_users_policy: True if `auto` runs it on a policy that a user gives.
    repair: see `OneShotPlacer`.
  """

  name: str
  path: str
  family: str
  in_auto: bool = True
  needs_microbatches: bool = False
  accepts_start: bool = False
  takes_users_policy: bool = False
  repair: Repair = "each"

  @property
  def is_classical(self) -> bool:
    """True if it neither searches nor uses a policy."""
    return self.family in ("rules", "list_scheduling", "partition")


def _one_shot(name: str, family: str, module: str, **fields: Any) -> Strategy:
  path = f"tfplace.placers.{family}.{module}"
  return Strategy(name, path, family, **fields)


def _on_grid(name: str, module: str = "device_grid") -> Strategy:
  return _one_shot(
    name, "rules", module, repair="fastest", needs_microbatches=True
  )


def _learned(name: str, folder: str, **fields: Any) -> Strategy:
  path = f"tfplace.learned.{folder}"
  return Strategy(name, path, "learned", **{"in_auto": False, **fields})


# `auto` and annealing run the classical strategies, and reports list all, in
# this order, roughly by speed.
STRATEGIES = {
  strategy.name: strategy
  for strategy in (
    _one_shot("single", "rules", "single", repair="none"),
    _one_shot("cpu", "rules", "single", repair="none"),
    _one_shot("blocks", "rules", "single"),
    _one_shot("expert", "rules", "expert"),
    _one_shot("axes", "rules", "axes", repair="fastest"),
    _on_grid("data_parallel"),
    _on_grid("pipeline"),
    _on_grid("hybrid"),
    _on_grid("layerwise", "layerwise"),
    _one_shot("metis", "partition", "metis"),
    _one_shot("scotch", "partition", "scotch"),
    _one_shot("m_topo", "list_scheduling", "placers"),
    _one_shot("heft", "list_scheduling", "placers"),
    _one_shot("m_etf", "list_scheduling", "placers"),
    _one_shot("m_sct", "list_scheduling", "placers"),
    Strategy(
      "annealing",
      "tfplace.placers.search.annealing:AnnealingPlacer",
      "search",
      accepts_start=True,
    ),
    Strategy(
      "brkga",
      "tfplace.placers.search.brkga:BrkgaPlacer",
      "search",
      in_auto=False,
    ),
    _learned(
      "ordered",
      "ordered",
      in_auto=True,
      accepts_start=True,
      takes_users_policy=True,
    ),
    _learned("gdp", "gdp", takes_users_policy=True),
    _learned("placeto", "sequence"),
    _learned("hierarchical", "sequence"),
    _learned("rnn", "sequence"),
    Strategy(
      "auto",
      "tfplace.placers.auto:AutoPlacer",
      "auto",
      in_auto=False,
      accepts_start=True,
    ),
  )
}


def named(**fields: Any) -> tuple[str, ...]:
  """Returns the strategies whose fields have these values, in order."""
  return tuple(
    name
    for name, strategy in STRATEGIES.items()
    if all(getattr(strategy, key) == value for key, value in fields.items())
  )


LEARNED = named(family="learned")
LEARNED_IN_AUTO = named(family="learned", in_auto=True)
CLASSICAL = named(is_classical=True, needs_microbatches=False)
MICROBATCHED = named(needs_microbatches=True)
# Strategies that run on every step with the base install alone, and in
# reasonable time.
READY = (*CLASSICAL, "annealing", "brkga", *LEARNED_IN_AUTO, "auto")


_MANY_OPS = 10_000  # of a microbatched step, see `classical`


def classical(problem: Problem, large_ops: int = 200_000) -> tuple[str, ...]:
  """Returns the classical strategies of `auto` for a problem, in order.

  Even the shortest search runs the first one. On graphs with `large_ops` ops or
  more, where the others take seconds and a search may not get far, it is METIS.
  Microbatches have rules of their own. From 10,000 ops on, where a search may
  not get to all, HEFT comes next, the best of the others on development steps.
  """
  names = CLASSICAL
  if problem.graph.num_microbatches > 1:
    first = (MICROBATCHED[0], CLASSICAL[0], *MICROBATCHED[1:])
    if _MANY_OPS <= problem.graph.num_ops < large_ops:
      first = (*first, "heft")
    names = (*first, *(name for name in CLASSICAL if name not in first))
  elif problem.graph.num_ops >= large_ops:
    names = ("metis", *(name for name in CLASSICAL if name != "metis"))
  no_cpu = problem.off_cpu is not None  # CPUs do not compute.
  return tuple(
    name
    for name in names
    if STRATEGIES[name].in_auto and not (no_cpu and name == "cpu")
  )


def get_placer(
  strategy: str,
  policy: str | None = None,
  *,
  start: np.ndarray | None = None,
  tolerance: float | None = None,
) -> Placer:
  """Creates the placer of a strategy.

  Args:
    strategy: name of a strategy in `STRATEGIES`.
    policy: directory of an exported policy, for a learned strategy or `auto`;
      None means the policy that ships with the package.
    start: [num_starts, num_ops] devices of placements; a strategy that accepts
      starts begins with the best.
    tolerance: see `AutoPlacer`; other strategies ignore it.

  Raises:
    TfplaceError: the strategy is unknown, does not take a policy, or cannot
      start from a placement.
  """
  placer = _placer_type(strategy)
  family = STRATEGIES[strategy].family
  options: dict[str, Any] = {}
  if policy is not None:
    if family not in ("auto", "learned"):
      raise TfplaceError(
        f"strategy {strategy!r} uses no policy, yet {policy!r} was given"
      )
    if family == "auto":
      _check_users_policy(policy)
    options["policy"] = policy
  if start is not None:
    check_accepts_start(strategy)
    options["start"] = start
  if tolerance is not None and family == "auto":
    options["tolerance"] = tolerance
  return placer(**options)


def _check_users_policy(policy: str) -> None:
  """Raises TrainingError unless a directory holds a policy for `auto`."""
  read_info = _imported("tfplace.learned.policy_format:read_info")
  errors: list[TfplaceError] = []
  asked = dict.fromkeys((*LEARNED_IN_AUTO, *named(takes_users_policy=True)))
  for strategy in asked:
    try:
      read_info(policy, strategy)
      return
    except TfplaceError as error:
      errors.append(error)
  raise errors[0]


def policy_starts(policy: str, problem: Problem) -> np.ndarray:
  """Returns [num_starts, num_ops] devices, see `learned.policies.starts`."""
  return _imported("tfplace.learned.policies:starts")(policy, problem)


def check_accepts_start(strategy: str) -> None:
  """Raises TfplaceError unless a strategy can start from a given placement."""
  accept = named(accepts_start=True)
  if strategy not in accept:
    raise TfplaceError(
      f"strategy {strategy!r} cannot begin from a placement;"
      f" {', '.join(accept[:-1])} and {accept[-1]} can"
    )


def _placer_type(strategy: str) -> Callable[..., Placer]:
  if not isinstance(strategy, str) or strategy not in STRATEGIES:
    raise TfplaceError(
      f"unknown strategy {strategy!r}; choose one of {', '.join(STRATEGIES)}"
    )
  path = STRATEGIES[strategy].path
  if STRATEGIES[strategy].is_classical:
    propose = _imported(f"{path}:{strategy}")
    repair = STRATEGIES[strategy].repair
    return functools.partial(OneShotPlacer, strategy, propose, repair)
  if STRATEGIES[strategy].family == "learned":
    path = _method(strategy).placer
  return _imported(path)


def _method(strategy: str) -> Any:
  """Returns the `tfplace.learned.Method` of a learned strategy."""
  return importlib.import_module(STRATEGIES[strategy].path).METHODS[strategy]


def _imported(path: str) -> Callable[..., Any]:
  module, name = path.split(":")
  return getattr(importlib.import_module(module), name)
