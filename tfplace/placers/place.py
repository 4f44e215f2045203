"""`place`: finds a placement by any strategy in one call.

`warm_up` compiles a strategy before its clock starts; Numba keeps the machine
code on disk.
"""

import functools
import itertools
import math
import sys
from collections.abc import Mapping

import numpy as np

from tfplace.bounds import check_memory
from tfplace.errors import TfplaceError
from tfplace.graph.argument_checks import check_count, check_number, plain
from tfplace.graph.budget import Budget, check_budget, check_gap
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.evaluation import Result
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.order import AUTO, ORDERS, check_order, resolved
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers import registry
from tfplace.placers.replan import Start, carried_over
from tfplace.placers.requests import Request
from tfplace.placers.sub_clusters import place_on_parts_first
from tfplace.simulate import Simulator


def place(
  problem: Problem,
  strategy: str = "auto",
  *,
  budget_s: float = 60.0,
  seed: int = 0,
  evaluator: Evaluator | None = None,
  policy: str | None = None,
  max_evaluations: int | None = None,
  init_placement: Start | None = None,
  tolerance: float = 0.0,
  order: str | None = None,
  dask: str | None = None,
  gap: float = 0.0,
) -> Result:
  """Places `problem` by a strategy.

  Args:
    strategy: one of `registry.STRATEGIES`.
    budget_s: seconds that the strategy may take; one-shot placers take less.
      Compilation, once per installation, is not counted (see `warm_up`).
    evaluator: evaluates placements; None means the simulator.
    policy: directory of an exported policy, for a learned strategy or `auto`.
    max_evaluations: limits the search by placements instead of seconds, which
      makes results for a seed equal on all machines. Parts of the cluster that
      are searched first (see `sub_clusters`) have as many each.
    init_placement: a placement or op -> device mapping to start from, for
      strategies that accept a start. If it has the same ops and devices and
      fits in memory, the result is never worse, except by the 5% for which no
      CPU computes beside GPUs. From another graph or cluster, the common part
      is kept (see `replan`).
    tolerance: share of the step time that `auto` may give up for less traffic,
      such as the noise of measured costs.
    order: execution order: "arrival", "rank", or "auto". For a microbatched
      step, the last chooses rank if it gains at least 3% or only its placement
      fits (`result.order` has the choice); a whole step runs in order of
      arrival. None means the problem's own.
    dask: address of a Dask scheduler, whose workers search with one seed each,
      or "local" for one worker in a thread of this process; the best result
      wins, and limits hold for each search. None searches without Dask.

    gap: share of the proven lower bound by which the step time may exceed it
      for the search to end early, such as 0.02. Above 0, it also ends early if
      a third of its rounds improves nothing. With 0, only a proven optimum ends
      it.

  Raises:
    TfplaceError: the strategy is unknown (lists the choices) or an argument is
      invalid.
    InfeasibleError: nothing found fits in memory, or provably nothing does;
      gives the missing bytes and the device.
  """
  budget_s, seed, max_evaluations, tolerance, gap = map(
    plain, (budget_s, seed, max_evaluations, tolerance, gap)
  )
  _check_arguments(problem, budget_s, seed, max_evaluations, tolerance)
  check_gap(gap)
  if order is not None:
    check_order(order, (*ORDERS, AUTO))
    order = resolved(order, problem.graph)
    if evaluator is not None and order != evaluator.problem.order:
      raise TfplaceError(
        f"order is {order!r}, and the evaluator that is given judges in the"
        f" order of its own problem, {evaluator.problem.order!r}"
      )
  if init_placement is not None:
    registry.check_accepts_start(strategy)

  registry.get_placer(strategy, policy)  # Rejects invalid arguments first.
  if dask is not None:
    from tfplace.placers import dask_workers  # Imports this module.

    if evaluator is not None:
      raise TfplaceError(
        f"dask={dask!r} searches by simulation: leave evaluator out"
      )
    check_memory(problem)
    options = {
      "strategy": strategy,
      "budget_s": budget_s,
      "seed": seed,
      "policy": policy,
      "max_evaluations": max_evaluations,
      "init_placement": init_placement,
      "tolerance": tolerance,
      "order": order or problem.order,
      "gap": gap,
    }
    with dask_workers.opened_workers(dask, strategy) as workers:
      return dask_workers.place_on_workers(problem, workers, **options)

  if evaluator is None:
    check_memory(problem)
  warm_up(strategy, problem.cluster.has_message_costs)
  budget = Budget(budget_s, max_evaluations, gap)
  starts = None if init_placement is None else _starts(problem, init_placement)
  request = Request(
    strategy=strategy,
    seed=seed,
    order=order or problem.order,
    policy=policy,
    tolerance=tolerance,
    evaluator=evaluator,
  )
  return place_on_parts_first(request, problem, budget, starts)


def _check_arguments(
  problem: Problem,
  budget_s: float,
  seed: int,
  max_evaluations: int | None,
  tolerance: float,
) -> None:
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


def _starts(problem: Problem, placement: Start) -> np.ndarray:
  """Converts a given placement to [num_starts, num_ops] devices.

  Raises TfplaceError if it is not a placement or has none of the graph's ops.
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


@functools.cache
def warm_up(strategy: str, message_costs: bool = False) -> None:
  """Compiles a strategy by placing a small graph with all its parts.

  Args:
    strategy: one of `registry.STRATEGIES`; of a learned one, only the simulator
      is compiled, and of `auto` the learned ones only if TensorFlow is loaded.
    message_costs: compile for links that occupy their endpoint devices (see
      `Cluster.has_message_costs`). Each case is compiled separately.

  Raises:
    TfplaceError: the strategy is unknown; lists the choices.
  """
  problem = _ladder(message_costs)
  simulator = Simulator(problem)
  parts: tuple[str, ...] = (strategy,)
  asked = registry.LEARNED_IN_AUTO if "tensorflow" in sys.modules else ()
  if strategy == "auto":
    parts = (*registry.CLASSICAL, "pipeline", "annealing", *asked)
  elif strategy in registry.LEARNED:
    parts = ("single",)
  for part in parts:
    placer = registry.get_placer(part)
    # Some placers reject problems this small; their kernels are compiled by
    # then.
    try:
      placer.place(problem, simulator, Budget(1e6, 8), 0)
    except TfplaceError:
      continue


def _ladder(message_costs: bool) -> Problem:
  """Builds a graph that is large enough to merge and never proven optimal."""
  count = 12
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": 1.0, "CPU": 9.0}, [1e4], 8.0)
    for i in range(count)
  ]
  edges = [(i, 0, i + step) for step in (2, 4) for i in range(count - step)]
  names = ("GPU:0", "GPU:1", "CPU:0")
  devices = tuple(Device(n, n[:3], 1e6, 1.0) for n in names)
  links = tuple(
    Link(a, b, 100.0, 1.0, send_us=float(message_costs))
    for a, b in itertools.permutations(names, 2)
  )
  cluster = Cluster("ladder", devices, links)
  return Problem(build_graph("ladder", ops, edges), cluster)
