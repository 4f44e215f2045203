"""Parallel search of one problem: several seeds and orders in rounds.

In each round every worker searches with its own seed. The next round continues
from the best placement of all (cooperative multi-walk search). A round ends on
time: a worker that was lost costs one task.
"""

import dataclasses
import math
import sys
from collections.abc import Sequence

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import HistoryPoint, Result
from tfplace.core.order import AUTO, ORDERS
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError
from tfplace.placers import registry
from tfplace.placers.auto import AutoConfig, consolidated
from tfplace.placers.groups import GroupGraph
from tfplace.placers.order_choice import better_order
from tfplace.placers.parallel.tasks import (
  SearchTask,
  pack_problem,
  run_search,
  unpack_result,
  warm_up_workers,
)
from tfplace.placers.parallel.workers import Workers
from tfplace.placers.search.annealing import improvements
from tfplace.simulate import Simulator


@dataclasses.dataclass(frozen=True)
class RoundsConfig:
  """Division of the budget into rounds; shares were chosen by trial.

  Attributes:
    shares: share of the budget of each round.
    least_s: least seconds of a round; with fewer, rounds are joined.
    late_s: seconds after its end when a task of a round is given up, because
      its worker is lost or overloaded.
    late_share: further seconds, as a share of the round.
  """

  shares: tuple[float, ...] = (0.7, 0.3)
  least_s: float = 1.0
  late_s: float = 2.0
  late_share: float = 0.25


def place_on_workers(
  problem: Problem,
  task: SearchTask,
  workers: Workers,
  number: int | None = None,
) -> Result:
  """Places a problem on workers, with as many searches at once.

  Strategies without a search run in this process, which also takes over if all
  workers are lost.

  Args:
    task: what one process would do; its limits are those of the whole search.
    number: searches at once; None means one per worker.

  Raises:
    InfeasibleError: nothing that was found fits in memory.
    TfplaceError: the strategy fails.
  """
  if registry.STRATEGIES[task.strategy].is_classical:
    return task.run(problem)
  graph, cluster = problem.graph, problem.cluster
  number = number or max(1, len(workers.addresses))
  # A policy runs where it would run here: TensorFlow takes seconds to load.
  asks = graph.num_microbatches > 1 and "tensorflow" in sys.modules
  warm_up_workers(workers, task.strategy, cluster.has_message_costs, asks)
  config, is_auto = AutoConfig(), task.strategy == "auto" and number > 1
  budget = Budget(task.seconds, task.max_evaluations, task.gap)
  kept, kept_s = config.kept(budget, graph) if is_auto else (0, 0.0)
  most = task.max_evaluations
  shorter = dataclasses.replace(
    task,
    seconds=task.seconds - kept_s,
    max_evaluations=None if most is None else max(1, most - kept),
  )
  found = ParallelSearch(problem, shorter, workers, number).run()
  if found is None:
    left_s = max(budget.left_s, 1e-3)
    return dataclasses.replace(task, seconds=left_s).run(problem)
  if not is_auto:
    return found
  problem = found.placement.problem
  left = budget.minus(0 if most is None else most - kept)
  groups, simulator = GroupGraph(problem), Simulator(problem)
  return consolidated(found, groups, simulator, left, task.tolerance, config)


class ParallelSearch:
  """Search of one problem on several workers.

  Args:
    task: what one process would do; its start, seed and limits are those of
      the whole search. A limit of evaluations is divided among the workers.
    number: searches per round, such as the number of workers.

  Attributes:
    budget: Budget of the whole search, whose clock runs from the start.
  """

  def __init__(
    self,
    problem: Problem,
    task: SearchTask,
    workers: Workers,
    number: int,
    config: RoundsConfig | None = None,
  ) -> None:
    self._problem = problem
    self._task = task
    self._workers = workers
    self._number = number
    self._config = config or RoundsConfig()
    self._content = pack_problem(problem)
    self.budget = Budget(task.seconds, task.max_evaluations, task.gap)
    self._results: list[Result] = []
    self._points: list[HistoryPoint] = []
    self._failure: TfplaceError | None = None
    self._other_order_us: float | None = None

  def run(self) -> Result | None:
    """Searches until the budget is spent; None if all workers were lost.

    Raises:
      InfeasibleError: nothing that was found fits in memory.
      TfplaceError: the strategy fails.
    """
    shares: Sequence[float] = (1.0,)
    strategy = registry.STRATEGIES[self._task.strategy]
    if strategy.accepts_start and self._number > 1:
      shares = self._config.shares
    best: Result | None = None
    ends = np.cumsum(shares) / sum(shares)
    for number, (share, end) in enumerate(zip(shares, ends, strict=True)):
      budget = self.budget
      seconds = budget.left_s - (1.0 - end) * budget.seconds
      is_short = budget.is_timed and seconds < self._config.least_s
      if best is not None and is_short:
        continue
      found = self._round(number, self._tasks(number, share, seconds, best))
      best = self._better(found, best)
      if best is not None and best.evaluation.is_within(budget.gap):
        break
    if best is not None:
      return self._whole(best)
    if self._failure is not None:
      raise self._failure
    return None

  def _tasks(
    self, number: int, share: float, seconds: float, best: Result | None
  ) -> list[SearchTask]:
    """Returns the tasks of a round, which differ in their seeds and orders."""
    most = self._task.max_evaluations
    if most is not None:
      most = max(1, int(share * most / self._number))
    task = dataclasses.replace(
      self._task, seconds=max(seconds, 1e-3), max_evaluations=most
    )
    if best is not None:
      task = dataclasses.replace(
        task,
        start=best.placement.devices,
        order=best.order,
        continues=True,
      )
    return [
      dataclasses.replace(
        task,
        seed=self._seed(number, i),
        order=self._order(task.order, i),
      )
      for i in range(self._number)
    ]

  def _seed(self, number: int, index: int) -> int:
    """Returns the seed of a task; the first task has the user's."""
    if number == index == 0:
      return self._task.seed
    key = [self._task.seed, number, index]
    return int(np.random.SeedSequence(key).generate_state(1)[0])

  def _order(self, order: str, index: int) -> str:
    if order != AUTO or self._number == 1:
      return order
    return ORDERS[index % len(ORDERS)]

  def _round(self, number: int, tasks: Sequence[SearchTask]) -> list[Result]:
    """Runs the tasks of a round; returns what was found in time."""
    began_s = self.budget.seconds - self.budget.left_s
    futures = self._workers.submit_each(
      run_search, [(self._content, task) for task in tasks]
    )
    found = []
    limit_s = self._limit_s(tasks[0])
    for content in self._workers.results(futures, limit_s):
      try:
        result = unpack_result(content, self._problem)
      except TfplaceError as error:
        self._failure = self._failure or error
        continue
      found.append(result)
      self._points += [
        dataclasses.replace(point, seconds=point.seconds + began_s)
        for point in result.history
      ]
    self._results += found
    return found

  def _limit_s(self, task: SearchTask) -> float | None:
    """Returns the seconds after which the tasks of a round are late."""
    if task.max_evaluations is not None:
      return None
    return task.seconds * (1 + self._config.late_share) + self._config.late_s

  def _better(
    self, found: Sequence[Result], best: Result | None
  ) -> Result | None:
    """Returns the best result of a round and of the rounds before."""
    candidates = [*found] if best is None else [best, *found]
    if not candidates:
      return best
    if best is None and self._task.order == AUTO:
      candidates = self._of_better_order(candidates)
    return min(candidates, key=lambda r: r.evaluation.step_time_us)

  def _of_better_order(self, found: Sequence[Result]) -> list[Result]:
    """Chooses the order and returns its results."""
    if self._number == 1:
      self._other_order_us = found[0].other_order_us
      return list(found)
    us = {
      order: min(
        (r.evaluation.step_time_us for r in found if r.order == order),
        default=math.inf,
      )
      for order in ORDERS
    }
    order = better_order(us)
    (self._other_order_us,) = (us[o] for o in ORDERS if o != order)
    return [result for result in found if result.order == order]

  def _whole(self, best: Result) -> Result:
    """Describes the whole search; `best` may be of its last round."""
    first = self._results[0]
    return dataclasses.replace(
      best,
      strategy=first.strategy,
      history=improvements(self._points),
      seconds=self.budget.seconds - self.budget.left_s,
      evaluations=sum(result.evaluations for result in self._results),
      tried=_best_of_each(self._results, first.strategy),
      skipped=first.skipped,
      other_order_us=self._other_order_us,
    )


def _best_of_each(
  results: Sequence[Result], strategy: str
) -> tuple[Result, ...]:
  """Returns the best result of each placer that `strategy` tried."""
  best: dict[str, Result] = {}
  for found in results:
    for tried in (*found.tried, found):
      known = best.get(tried.strategy, tried)
      if tried.evaluation.step_time_us <= known.evaluation.step_time_us:
        best[tried.strategy] = tried
  best.pop(strategy)
  return tuple(best.values())
