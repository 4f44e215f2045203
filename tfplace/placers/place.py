"""`place`: finds a placement by any strategy in one call."""

import contextlib
from collections.abc import Mapping

import numpy as np

from tfplace.bounds import check_memory
from tfplace.errors import TfplaceError
from tfplace.graph.evaluation import Result
from tfplace.graph.order import resolved
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers import registry
from tfplace.placers.beside_gpus import place_beside_gpus
from tfplace.placers.compilation import warm_up
from tfplace.placers.dask_workers import (
  Workers,
  opened_workers,
  place_on_workers,
)
from tfplace.placers.replan import Start, carried_over
from tfplace.placers.requests import Request
from tfplace.placers.sub_clusters import place_also_on_parts


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
  dask: str | Workers | None = None,
  gap: float = 0.0,
) -> Result:
  """Places `problem` by a strategy.

  Args:
    strategy: one of `registry.STRATEGIES`.
    budget_s: seconds that the strategy may take; one-shot placers take less.
      Compilation, once per installation, is not counted (see `compilation`).
    evaluator: evaluates placements; None means the simulator.
    policy: directory of an exported policy, for a learned strategy or `auto`.
    max_evaluations: limits the search by placements instead of seconds, which
      makes results for a seed equal on all machines. Without a start, parts of
      the cluster that may be faster (see `sub_clusters`) have as many each, so
      more devices are never worse.
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
    dask: address of a Dask scheduler, or its opened workers, which search with
      one seed each, or "local" for one worker in a thread of this process; the
      best result wins, and limits hold for each search. None searches without
      Dask.
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
  if not isinstance(problem, Problem):
    raise TfplaceError(
      f"problem is a {type(problem).__name__}; it must be a Problem(graph,"
      " cluster)"
    )
  request = Request(
    strategy=strategy,
    budget_s=budget_s,
    seed=seed,
    order=problem.order if order is None else resolved(order, problem.graph),
    policy=policy,
    tolerance=tolerance,
    max_evaluations=max_evaluations,
    gap=gap,
    evaluator=evaluator,
  )
  if dask is not None and evaluator is not None:
    raise TfplaceError(
      f"dask={dask!r} searches by simulation: leave evaluator out"
    )
  starts = None
  if init_placement is not None:
    registry.check_accepts_start(strategy)
    starts = _starts(problem, init_placement)
  if evaluator is None:
    check_memory(problem)
  if dask is None:
    return place_here(problem, request, starts)
  with contextlib.ExitStack() as stack:
    workers = (
      dask
      if isinstance(dask, Workers)
      else stack.enter_context(opened_workers(dask, strategy))
    )
    if registry.STRATEGIES[strategy].is_classical:
      return place_here(problem, request, starts)
    return place_on_workers(problem, workers, request, starts, place=place_here)


def place_here(
  problem: Problem, request: Request, starts: np.ndarray | None
) -> Result:
  """Places a problem in this process, from starts if there are any.

  Raises:
    InfeasibleError: nothing found fits in memory.
    TfplaceError: the strategy rejects the problem.
  """
  warm_up(request.strategy, problem.cluster.has_message_costs)
  if request.uses_budget and starts is None:
    return place_also_on_parts(request, problem, request.budget)
  return place_beside_gpus(request, problem, request.budget, starts)


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
