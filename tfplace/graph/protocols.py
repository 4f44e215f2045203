"""The interfaces of tfplace: evaluators, placers and cost models.

An `Evaluator` returns the `Evaluation`s of placements. A `Placer` searches for
a placement within a `Budget` and returns a `Result`. A `CostModel` gives the
times of ops, as `OpCosts`.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Evaluation, Result
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem


class Evaluator(Protocol):
  """Evaluates placements of one problem by simulation or measurement."""

  problem: Problem

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Evaluates [batch, num_ops] device indices or `Placement`s, in order."""

  def step_times(
    self, devices: np.ndarray, limit_us: float = math.inf
  ) -> np.ndarray:
    """Returns the [batch] step times of [batch, num_ops] device indices.

    A placement that does not fit, or is slower than the limit, takes infinitely
    long. A simulator does not check the indices, and stops at the limit.
    """
    times_us = np.array(
      [e.step_time_us if e.feasible else np.inf for e in self.evaluate(devices)]
    )
    return np.where(times_us <= limit_us, times_us, np.inf)


class Placer(Protocol):
  """An algorithm that proposes an allowed placement.

  It is deterministic given its seed and a number of evaluations.
  """

  name: str

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Returns the best placement found; InfeasibleError if nothing fits."""


@dataclasses.dataclass(frozen=True)
class OpCosts:
  """Costs of the ops of a step, as given by a cost model.

  Attributes:
    time_us: device kind -> [num_ops] float64 microseconds; ignored for kinds
      without a kernel for the op.
    temp_bytes: [num_ops] float64 held while an op runs; None keeps those of the
      graph.
    extra: keys for `OpGraph.extra`, such as the ops with guessed costs.
    peak_us: as `OpGraph.peak_us`; None keeps that of the graph.
  """

  time_us: Mapping[str, np.ndarray]
  temp_bytes: np.ndarray | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  peak_us: Mapping[str, np.ndarray] | None = None

  def fill(self, graph: OpGraph) -> OpGraph:
    """Returns the graph with these costs wherever its `time_us` is not NaN."""
    time_us = {
      kind: np.where(np.isnan(before), np.nan, self.time_us[kind])
      for kind, before in graph.time_us.items()
    }
    given = {"temp_bytes": self.temp_bytes, "peak_us": self.peak_us}
    changes: Any = {k: v for k, v in given.items() if v is not None}
    return dataclasses.replace(graph, time_us=time_us, **changes)


class CostModel(Protocol):
  """A model of op costs: estimated, measured or learned."""

  name: str

  def op_costs(self, step: Any) -> OpCosts:
    """Returns the costs of a step's ops on each device kind.

    Args:
      step: a `tfplace.cost.Step`: the graph without costs, TensorFlow's nodes
        and shapes, and the hardware of each kind.
    """
