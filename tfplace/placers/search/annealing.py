"""Simulated annealing over the placements of groups, by the exact simulator.

Kirkpatrick, Gelatt and Vecchi (1983), from the best of the classical
placements (on a large graph, from what `sweeps` make of them), with moves that
know the graph: single groups, swaps, blocks in time, neighborhoods, units of
groups at several levels (`coarsen`), and waits on the critical path. `search`
holds the schedule, `chain` the compiled loop.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, HistoryPoint, Result
from tfplace.errors import TfplaceError
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_packed, offer_starts
from tfplace.placers.search.config import SearchConfig
from tfplace.placers.search.halves import Place, search_halves
from tfplace.placers.search.search import Search
from tfplace.placers.tracker import Tracker
from tfplace.simulate import Simulator

# Share of all seconds after which no further classical placer is begun: the
# quickest come first, and the search makes up for the others. (At 10 s, five
# graphs of 19,000 to 54,000 ops ended 1.3% lower with 0.15 than with 0.4.)
CLASSICAL_TOTAL = 0.15
# Of the seconds left where nothing fits yet, for a first packing: annealing,
# which counts excess bytes as time, is better where activations decide.
_PACKING_SHARE = 0.2
_LEAST_PACKING_S = 0.5  # whatever is left
# Seconds for each group that a search takes before its first move, and for each
# group and device; and those for each group below which halves are not searched
# by themselves.
_SETUP_S, _SETUP_DEVICE_S = 8e-6, 0.6e-6
_HALVES_S = 60e-6


@dataclasses.dataclass(frozen=True)
class AnnealingPlacer:
  """Simulated annealing from the best classical placements.

  Attributes:
    config: of the search.
    starts: strategies whose placements it starts from; None for all that are
      quick.
    start: [num_starts, num_ops] devices of placements to start from, too, of
      which the best counts; None for none.
  """

  config: SearchConfig = dataclasses.field(default_factory=SearchConfig)
  starts: tuple[str, ...] | None = None
  start: np.ndarray | None = None
  name: ClassVar[str] = "annealing"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Searches until the budget is spent."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    found: list[Result] = []
    failed: dict[str, str] = {}
    wanted = self.starts
    for strategy in registry.classical(problem) if wanted is None else wanted:
      if found and budget.spent > CLASSICAL_TOTAL:
        break
      if any(result.evaluation.is_optimal for result in found):
        break
      try:
        placer = registry.get_placer(strategy)
        found.append(placer.place(problem, evaluator, budget, seed))
      except TfplaceError:
        continue  # what does not fit, or has no CPU: the other starts do
      except Exception as error:
        failed[strategy] = f"{type(error).__name__}: {error}"
    starts = [result.placement.devices for result in best_first(found)]
    if self.start is not None:
      starts.insert(0, offer_starts(tracker, groups, self.start))
    result = improve(tracker, groups, starts, seed, self.config)
    return dataclasses.replace(result, skipped=failed)


def best_first(results: Sequence[Result]) -> list[Result]:
  """By step time; equal placements once."""
  ordered = sorted(results, key=lambda r: r.evaluation.step_time_us)
  seen: set[bytes] = set()
  distinct = []
  for result in ordered:
    key = result.placement.devices.tobytes()
    if key not in seen:
      seen.add(key)
      distinct.append(result)
  return distinct


def improve(
  tracker: Tracker,
  groups: GroupGraph,
  starts: Sequence[np.ndarray],
  seed: int,
  config: SearchConfig,
) -> Result:
  """Searches from [num_ops] starts with what is left of the budget.

  Without a start, from a packing of the groups' memory, else from every group
  on its fastest device. Where nothing that it finds fits, what is left of the
  budget goes to packing. What takes long to begin is left out if little time is
  left.

  Returns:
    The best of the starts and of what the search found, by the tracker's
    evaluator; the search itself always simulates.
  """
  if not starts:
    starts = [_start(tracker, groups, seed)]
  for start in starts:
    tracker.offer(start)
  setup_s = _SETUP_S + _SETUP_DEVICE_S * groups.num_devices
  if tracker.is_optimal or _is_short(tracker, groups, setup_s):
    return tracker.result()
  first = [groups.contract(start) for start in starts]
  budget = tracker.budget
  is_large = groups.num_groups >= config.coarse_groups
  if is_large and not _is_short(tracker, groups, _HALVES_S):
    before = tracker.evaluations
    halved = search_halves(tracker, groups, seed, _searching(config, seed))
    if halved is not None:
      tracker.offer(groups.expand(halved))
      first.insert(0, halved)
    if budget.max_evaluations is not None:
      left = budget.max_evaluations - (tracker.evaluations - before)
      budget = dataclasses.replace(budget, max_evaluations=max(0, left))
  search = Search(groups, seed, config, first[0])
  simulated: list[HistoryPoint] = []

  def improved(step_time_us: float, evaluations: int) -> None:
    total = tracker.evaluations + evaluations
    simulated.append(
      HistoryPoint(tracker.seconds, total, step_time_us, tracker.name)
    )

  search.run(first, budget, improved)
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


def _is_short(tracker: Tracker, groups: GroupGraph, group_s: float) -> bool:
  """Whether a placement is known, and fewer seconds are left than groups take;
  never where evaluations count, whose result no machine decides."""
  budget = tracker.budget
  if tracker.best is None or budget.max_evaluations is not None:
    return False
  return budget.left_s < group_s * groups.num_groups


def _searching(config: SearchConfig, seed: int) -> Place:
  """Searches a half of a problem as the whole is searched."""

  def place(problem: Problem, budget: Budget) -> Result:
    placer = AnnealingPlacer(config)
    return placer.place(problem, Simulator(problem), budget, seed)

  return place


def _start(tracker: Tracker, groups: GroupGraph, seed: int) -> np.ndarray:
  """[num_ops] devices to begin from where no placement is known to fit."""
  limit_s = _PACKING_SHARE * tracker.budget.left_s
  offer_packed(tracker, groups, seed, max(limit_s, _LEAST_PACKING_S))
  if tracker.best is not None:
    return tracker.best[0]
  return groups.expand(groups.time_us.argmin(axis=1))


def improvements(points: Sequence[HistoryPoint]) -> tuple[HistoryPoint, ...]:
  """Those points, in order of time, that are better than all before."""
  best, kept = math.inf, []
  for point in sorted(points, key=lambda p: (p.seconds, p.evaluations)):
    if point.step_time_us < best:
      best = point.step_time_us
      kept.append(point)
  return tuple(kept)
