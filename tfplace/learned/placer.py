"""Base of the placers by a trained policy (base install)."""

import abc
import dataclasses
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.learned.policies import Policy, load_placers_policy
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyPlacer(abc.ABC):
  """Placer by a trained policy, zero-shot.

  Attributes:
    policy: Directory of an exported policy; None selects the shipped one.
  """

  policy: str | None = None
  name: ClassVar[str]

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Returns the best placement that the policy proposes.

    Raises:
      TrainingError: There is no policy, or it cannot be loaded.
      InfeasibleError: No tried placement fits in memory.
    """
    policy = load_placers_policy(self.name, self.policy)
    tracker = Tracker(self.name, problem, evaluator, budget)
    self._propose(policy, tracker, np.random.default_rng(seed))
    return tracker.result()

  @abc.abstractmethod
  def _propose(
    self, policy: Policy, tracker: Tracker, rng: np.random.Generator
  ) -> None:
    """Offers placements to the tracker until it is done."""
