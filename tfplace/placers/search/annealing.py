"""Simulated annealing over placements with the exact simulator.

Kirkpatrick, Gelatt and Vecchi (1983), after greedy sweeps over coarse groups.
`search` has the schedule, `chain` the compiled loop.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import HistoryPoint, Result
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_packed, offer_starts
from tfplace.placers.search.search import Search
from tfplace.placers.tracker import Tracker, best_first, improvements
from tfplace.simulate.simulator import available_cores

# Share of the budget after which no further classical placer starts. The
# fastest run first, and the search compensates for the others.
CLASSICAL_SHARE = 0.15
# Share of the remaining seconds for a first packing if nothing fits yet, and
# seconds for any packing, whatever time is left.
_PACKING_SHARE, _LEAST_PACKING_S = 0.2, 0.5
# Setup seconds of the search per group, and further ones per group and device,
# measured; without them it is skipped.
_SETUP_S, _SETUP_DEVICE_S = 8e-6, 0.6e-6
_CHAINS = 2  # of a search by evaluations


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnnealingPlacer:
  """Simulated annealing from the best classical placements.

  Attributes:
    starts: Strategies that provide the starts. None uses all fast ones.
    start: [num_starts, num_ops] devices of additional starts, of which the best
      is used. None adds none.
  """

  starts: tuple[str, ...] | None = None
  start: np.ndarray | None = None
  name: ClassVar[str] = "annealing"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Searches until the budget is spent."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph.of(problem)
    found: list[Result] = []
    failed: dict[str, str] = {}
    wanted = self.starts
    for strategy in registry.classical(problem) if wanted is None else wanted:
      if found and budget.spent > CLASSICAL_SHARE:
        break
      if any(result.evaluation.is_within(budget.gap) for result in found):
        break
      try:
        placer = registry.get_placer(strategy)
        found.append(placer.place(problem, evaluator, budget, seed))
      except TfplaceError:
        continue  # Does not fit or needs a CPU: the other starts suffice.
      except Exception as error:
        failed[strategy] = f"{type(error).__name__}: {error}"
    starts = [result.placement.devices for result in best_first(found)]
    if self.start is not None:
      starts.insert(0, offer_starts(tracker, groups, self.start))
    result = improve(tracker, groups, starts, seed=seed)
    return dataclasses.replace(result, skipped=failed)


def improve(
  tracker: Tracker,
  groups: GroupGraph,
  starts: Sequence[np.ndarray],
  *,
  seed: int,
) -> Result:
  """Searches from [num_ops] starts with the remaining budget.

  Without a start, the search begins with a packing of the groups' memory, or
  else with each group on its fastest device. If nothing fits, the remaining
  budget goes to packing. Phases with a long setup are skipped if little time is
  left.

  A search by seconds has a chain per core, a search by evaluations two, so that
  its result is the same on all machines.

  Returns:
    The best of the starts and of the search, according to the tracker's
    evaluator. The search itself always simulates.
  """
  if not starts:
    starts = [_start(tracker, groups, seed)]
  for start in starts:
    tracker.offer(start)
  setup_s = groups.num_groups * (
    _SETUP_S + _SETUP_DEVICE_S * groups.num_devices
  )
  # Evaluation budgets ignore time: results do not depend on the machine.
  is_short = tracker.budget.is_timed and tracker.budget.left_s < setup_s
  if tracker.is_met or (is_short and tracker.best is not None):
    return tracker.result()
  first = [groups.contract(start) for start in starts]
  chains = available_cores() if tracker.budget.is_timed else _CHAINS
  search = Search(groups, seed, chains=chains, like=first[0])
  simulated: list[HistoryPoint] = []

  def improved(step_time_us: float, evaluations: int) -> None:
    total = tracker.evaluations + evaluations
    simulated.append(
      HistoryPoint(tracker.seconds, total, step_time_us, tracker.name)
    )

  search.run(first, tracker.budget, improved)
  tracker.evaluations += search.evaluations
  if search.best is not None:
    tracker.offer(groups.expand(search.best))
  if tracker.best is None:
    left_s = max(tracker.budget.left_s, _LEAST_PACKING_S)
    offer_packed(tracker, groups, seed + 1, left_s)
  result = tracker.result()
  if result.evaluation.source == "simulated":
    points = improvements([*tracker.history, *simulated])
    result = dataclasses.replace(result, history=points)
  return result


def _start(tracker: Tracker, groups: GroupGraph, seed: int) -> np.ndarray:
  limit_s = _PACKING_SHARE * tracker.budget.left_s
  offer_packed(tracker, groups, seed, max(limit_s, _LEAST_PACKING_S))
  if tracker.best is not None:
    return tracker.best[0]
  return groups.expand(groups.time_us.argmin(axis=1))
