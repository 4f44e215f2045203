"""`place`: one call from a problem to a placement by any strategy.

`warm_up` compiles what a strategy needs before its clock starts: Numba compiles
on first use, about 27 s for all of `auto` on one core, once per installation;
later processes load the machine code from disk in under a second. A search must
not pay for that out of its budget.
"""

import functools
import itertools
import math
import sys
from collections.abc import Mapping

import numpy as np

from tfplace.bounds import check_memory
from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.order import AUTO, ORDERS, check_order
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import (
  Budget,
  Evaluator,
  Result,
  check_budget,
  check_count,
  check_number,
)
from tfplace.errors import TfplaceError
from tfplace.placers import registry
from tfplace.placers.order_choice import place_in_best_order
from tfplace.placers.registry import get_placer
from tfplace.placers.replan import Start, carried_over
from tfplace.placers.search.annealing import AnnealingPlacer
from tfplace.placers.search.config import SearchConfig


def place(
  problem: Problem,
  strategy: str = "auto",
  budget_s: float = 60.0,
  seed: int = 0,
  evaluator: Evaluator | None = None,
  policy: str | None = None,
  max_evaluations: int | None = None,
  init_placement: Start | None = None,
  tolerance: float = 0.0,
  order: str | None = None,
) -> Result:
  """Proposes a placement of `problem`.

  Args:
    problem: the graph and the cluster.
    strategy: one of `registry.STRATEGIES`.
    budget_s: seconds that the strategy may take; one-shot placers take less.
      Compiling, once per installation, is not counted (see `warm_up`).
    seed: fixes every random choice.
    evaluator: judges placements; None is the simulator.
    policy: directory of an exported policy, for a learned strategy and `auto`.
    max_evaluations: bounds the search by placements instead of seconds: the
      same seed then gives the same placement on any machine.
    init_placement: a placement, or op -> device, for the strategies of
      `registry.SEARCHES`: the search starts from it, too, and the result is
      never worse, where it is of the same ops and devices and fits in memory.
      Of another graph or cluster, what both have in common is kept (`replan`).
    tolerance: share of the step time that `auto` may give up for less traffic;
      the noise of measured costs is a good choice.
    order: in which devices take their ready ops: "arrival", "rank", or "auto",
      which tries both and takes rank where it gains at least 3% or fits where
      arrival does not (`result.order` says which). None is the problem's own.

  Raises:
    TfplaceError: an unknown strategy (lists the choices), or an argument that
      makes no sense.
    InfeasibleError: nothing that was tried fits in memory, or it is proven that
      nothing does; says how many bytes are lacking on which device.
  """
  _check_arguments(problem, budget_s, seed, max_evaluations, tolerance)
  if order is not None:
    check_order(order, (*ORDERS, AUTO))
    _check_judged(problem, order, evaluator)
  if init_placement is not None:
    registry.check_searches(strategy)

  def place_from(
    ordered: Problem, budget: Budget, start: Start | None
  ) -> Result:
    devices = None if start is None else _start(ordered, start)
    placer = get_placer(strategy, policy, devices, tolerance)
    judge = _simulator(ordered) if evaluator is None else evaluator
    return placer.place(ordered, judge, budget, seed)

  get_placer(strategy, policy)  # refuses what it must before it compiles
  if evaluator is None:
    check_memory(problem)
  is_split = problem.graph.num_microbatches > 1
  warm_up(strategy, problem.cluster.has_message_costs, is_split)
  budget = Budget(budget_s, max_evaluations)
  if order == AUTO:
    searches = strategy in registry.SEARCHES
    return place_in_best_order(
      problem, budget, init_placement, place_from, searches
    )
  ordered = problem.in_order(order or problem.order)
  return place_from(ordered, budget, init_placement)


def _check_arguments(
  problem: Problem,
  budget_s: float,
  seed: int,
  max_evaluations: int | None,
  tolerance: float,
) -> None:
  """Raises `TfplaceError` for an argument of `place` that makes no sense."""
  if not isinstance(problem, Problem):
    raise TfplaceError(
      f"problem is a {type(problem).__name__}; it must be a Problem(graph,"
      " cluster)"
    )
  check_budget(budget_s)
  check_count("seed", seed, 0)
  if max_evaluations is not None:
    check_count("max_evaluations", max_evaluations, 1)
  check_number("tolerance", tolerance)
  if not 0 <= tolerance < math.inf:
    raise TfplaceError(
      f"tolerance is {tolerance}; it must be at least 0 and finite"
    )


def _simulator(problem: Problem) -> Evaluator:
  from tfplace.simulate import Simulator  # compiles; only when needed

  return Simulator(problem)


def _check_judged(
  problem: Problem, order: str, evaluator: Evaluator | None
) -> None:
  """An evaluator that is given knows one order, that of its problem.

  Raises:
    TfplaceError: another one is asked for.
  """
  if evaluator is not None and order != evaluator.problem.order:
    raise TfplaceError(
      f"order is {order!r}, and the evaluator that is given judges in the order"
      f" of its own problem, {evaluator.problem.order!r}"
    )


def _start(problem: Problem, placement: Start) -> np.ndarray:
  """[num_starts, num_ops] devices that a given placement suggests.

  Raises:
    TfplaceError: it is no placement, or of none of the problem's ops.
  """
  if isinstance(placement, Placement):
    given = placement.problem
    if given.graph is problem.graph and given.cluster is problem.cluster:
      return placement.devices[np.newaxis]
    placement = placement.assignments
  if not isinstance(placement, Mapping):
    raise TfplaceError(
      f"init_placement is a {type(placement).__name__}; it must be a Placement"
      " or a mapping of ops to devices"
    )
  return carried_over(problem, placement)


_EVALUATIONS = 8
_LARGE_EVALUATIONS = 200


@functools.cache
def warm_up(
  strategy: str, message_costs: bool = False, is_split: bool = False
) -> None:
  """Places a graph of four ops, by every compiled part of a strategy.

  Args:
    strategy: one of `registry.STRATEGIES`; of a learned one, only the
      simulator is compiled.
    message_costs: for links that take time of their devices, as a cluster's
      `has_message_costs` says; what simulates is compiled for either alone.

  Raises:
    TfplaceError: unknown strategy (lists the choices).
  """
  from tfplace.simulate import Simulator  # compiles; only when needed

  problem = _diamond(message_costs)
  simulator = Simulator(problem)
  parts: tuple[str, ...] = (strategy,)
  asked = registry.ASKED if is_split and "tensorflow" in sys.modules else ()
  if strategy == "auto":
    parts = (*registry.CLASSICAL, "pipeline", "annealing", *asked)
  elif strategy in registry.LEARNED:
    parts = ("single",)
  for part in parts:
    placer = registry.get_placer(part)
    # A placer may find this problem beneath it; it has compiled all the same.
    try:
      placer.place(problem, simulator, Budget(1e6, _EVALUATIONS), 0)
    except TfplaceError:
      continue
  if "annealing" in parts:
    # As a large graph is searched, of which there is none to wait for here.
    large = AnnealingPlacer(SearchConfig(coarse_groups=1), ("single",))
    ladder = _ladder(problem.cluster)
    budget = Budget(1e6, _LARGE_EVALUATIONS)
    large.place(ladder, Simulator(ladder), budget, 0)


def _ladder(cluster: Cluster) -> Problem:
  """Enough groups to be merged and swept, and no start proven optimal."""
  count = 12
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": 1.0, "CPU": 9.0}, [1e4], 8.0)
    for i in range(count)
  ]
  edges = [(i, 0, i + step) for step in (2, 4) for i in range(count - step)]
  return Problem(build_graph("ladder", ops, edges), cluster)


def _diamond(message_costs: bool) -> Problem:
  """Two branches between two ops, on two GPUs and a CPU."""
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": 1.0 + i, "CPU": 9.0}, [64.0], 8.0)
    for i in range(4)
  ]
  edges = [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, 0, 3)]
  names = ("GPU:0", "GPU:1", "CPU:0")
  devices = tuple(Device(n, n[:3], 1e6, 1.0) for n in names)
  links = tuple(
    Link(a, b, 100.0, 1.0, send_us=float(message_costs))
    for a, b in itertools.permutations(names, 2)
  )
  return Problem(
    build_graph("warm_up", ops, edges), Cluster("warm_up", devices, links)
  )
