"""The interfaces of tfplace: evaluators, placers and cost models.

An `Evaluator` returns the `Evaluation`s of placements. A `Placer` searches for
a placement within a `Budget` and returns a `Result`. A `CostModel` gives the
times of ops.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.op_costs import OpCosts
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem


class Evaluator(Protocol):
  """Evaluates placements of one problem by simulation or measurement."""

  problem: Problem

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Evaluates [batch, num_ops] device indices or `Placement`s, in order."""


class Placer(Protocol):
  """An algorithm that proposes an allowed placement.

  It is deterministic given its seed and a number of evaluations.
  """

  name: str

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Returns the best placement found; InfeasibleError if nothing fits."""


class CostModel(Protocol):
  """A model of op costs: estimated, measured or learned."""

  name: str

  def op_costs(self, step: Any) -> OpCosts:
    """Returns the costs of a step's ops on each device kind.

    Args:
      step: a `tfplace.cost.Step`: the graph without costs, TensorFlow's nodes
        and shapes, and the hardware of each kind.
    """
