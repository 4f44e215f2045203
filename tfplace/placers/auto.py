"""`auto`: spends its budget among all strategies and keeps the best."""

import dataclasses
from typing import ClassVar

from tfplace.errors import TfplaceError
from tfplace.graph.problem import Problem
from tfplace.placers import registry
from tfplace.placers.base import Budget, Evaluator, Result
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True)
class AutoPlacer:
  """The best of all placers."""

  policy: str | None = None
  name: ClassVar[str] = "auto"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Tries the classical placers."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    tried = []
    for strategy in registry.CLASSICAL:
      try:
        placer = registry.get_placer(strategy)
        tried.append(placer.place(problem, evaluator, budget, seed))
      except TfplaceError:
        continue
      tracker.offer(tried[-1].placement.devices)
    return dataclasses.replace(tracker.result(), tried=tuple(tried))
