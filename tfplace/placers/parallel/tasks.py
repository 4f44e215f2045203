"""Searches as tasks of workers, and how problems and results travel.

A problem is pickled once, without derived values. Results refer to it by a
persistent id, so they hold placements but no graphs.
"""

import dataclasses
import functools
import importlib
import io
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError
from tfplace.placers import registry
from tfplace.placers.parallel.workers import Workers, ended_with_task
from tfplace.placers.place import place, warm_up
from tfplace.placers.replan import Start
from tfplace.placers.search.annealing import AnnealingPlacer
from tfplace.simulate import Simulator


@dataclasses.dataclass(frozen=True)
class SearchTask:
  """Search of one placement.

  Attributes:
    strategy: name of a strategy.
    seconds: time limit in seconds.
    seed: seed of the random choices.
    order: order of ready ops, or "auto" to choose it.
    policy: exported policy of a learned strategy, or None.
    max_evaluations: limit of evaluations, or None for a time limit only.
    start: placement to start from: [num_ops] devices, or op -> device name of
      another problem. None starts from scratch.
    continues: whether the search only improves `start`.
    tolerance: see `tfplace.place`.
    gap: see `tfplace.place`.
  """

  strategy: str
  seconds: float
  seed: int
  order: str
  policy: str | None = None
  max_evaluations: int | None = None
  start: np.ndarray | Mapping[str, str] | None = None
  continues: bool = False
  tolerance: float = 0.0
  gap: float = 0.0

  def run(self, problem: Problem) -> Result:
    """Searches in this process; raises TfplaceError as `tfplace.place` does."""
    start: Placement | Mapping[str, str] | None = None
    if isinstance(self.start, np.ndarray):
      start = Placement(problem, self.start)
    elif self.start is not None:
      start = self.start
    if not self.continues:
      return place(
        problem,
        self.strategy,
        self.seconds,
        self.seed,
        policy=self.policy,
        max_evaluations=self.max_evaluations,
        init_placement=start,
        tolerance=self.tolerance,
        order=self.order,
        gap=self.gap,
      )
    problem = problem.in_order(self.order)
    warm_up("annealing", problem.cluster.has_message_costs)
    rows = np.asarray(self.start, np.int32)[np.newaxis]
    placer = AnnealingPlacer(starts=(), start=rows)
    budget = Budget(self.seconds, self.max_evaluations, self.gap)
    return placer.place(problem, Simulator(problem), budget, self.seed)


def as_data(
  problem: Problem, start: Start | None
) -> np.ndarray | Mapping[str, str] | None:
  """Converts a start of `problem` to plain data, as `SearchTask` takes it."""
  if not isinstance(start, Placement):
    return start
  if start.problem.graph is problem.graph:
    return start.devices
  return start.assignments


def warm_up_workers(
  workers: Workers,
  strategy: str,
  message_costs: bool,
  asks_policy: bool,
  waits: bool = True,
) -> None:
  """Compiles a strategy on each worker, outside the budget.

  Args:
    message_costs: see `warm_up`.
    asks_policy: load TensorFlow, too, for a policy of `auto`.
    waits: return when the workers are ready.
  """
  given = strategy, message_costs, asks_policy
  (workers.prepare if waits else workers.start_preparing)(_warm_up, given)


def _warm_up(strategy: str, message_costs: bool, asks_policy: bool) -> None:
  if asks_policy or strategy in registry.LEARNED:
    importlib.import_module("tensorflow")
  warm_up(strategy, message_costs)
  warm_up("annealing", message_costs)


def pack_problem(problem: Problem) -> bytes:
  """Pickles a problem without the values that are derived from it."""
  plain = dataclasses.replace(
    problem,
    graph=dataclasses.replace(problem.graph),
    cluster=dataclasses.replace(problem.cluster),
  )
  return pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)


@functools.lru_cache(maxsize=4)
def unpack_problem(content: bytes) -> Problem:
  """Inverse of `pack_problem`; the last few problems are kept."""
  return pickle.loads(content)


def run_search(content: bytes, task: SearchTask) -> bytes:
  """Runs a search on a worker, of a problem by `pack_problem`.

  Returns:
    The result or its error, for `unpack_result`.
  """
  problem = unpack_problem(content)
  try:
    with ended_with_task():
      found: Result | TfplaceError = task.run(problem)
  except TfplaceError as error:
    found = error
  return pack_result(found, problem)


def pack_result(found: Result | TfplaceError, problem: Problem) -> bytes:
  """Pickles a result of a problem without the problem."""
  stream = io.BytesIO()
  _Pickler(stream, problem).dump(found)
  return stream.getvalue()


def unpack_result(content: bytes, problem: Problem) -> Result:
  """Inverse of `pack_result`; raises the error if it is one."""
  found = _Unpickler(io.BytesIO(content), problem).load()
  if isinstance(found, TfplaceError):
    raise found
  return found


class _Pickler(pickle.Pickler):
  """Replaces problems that share the graph of `problem` by their order."""

  def __init__(self, stream: io.BytesIO, problem: Problem) -> None:
    super().__init__(stream, pickle.HIGHEST_PROTOCOL)
    self._graph = problem.graph

  def persistent_id(self, value: Any) -> str | None:
    is_same = isinstance(value, Problem) and value.graph is self._graph
    return value.order if is_same else None


class _Unpickler(pickle.Unpickler):
  """Resolves the orders that `_Pickler` wrote."""

  def __init__(self, stream: io.BytesIO, problem: Problem) -> None:
    super().__init__(stream)
    self._problem = problem

  def persistent_load(self, key: str) -> Problem:
    return self._problem.in_order(key)
