"""The protocols that every placer and every evaluator fills in."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tfplace.graph.evaluation import Evaluation
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem


class Evaluator(Protocol):
  """Costs placements of one problem; simulated or measured is its affair."""

  problem: Problem

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Evaluates [batch, num_ops] device indices, or `Placement`s, in order."""


@dataclasses.dataclass(frozen=True)
class HistoryPoint:
  """One improvement: the best step time after so much work.

  Attributes:
    seconds: since the search began.
    evaluations: placements evaluated by then.
    step_time_us: best feasible step time by then.
    strategy: the placer that found it.
  """

  seconds: float
  evaluations: int
  step_time_us: float
  strategy: str


@dataclasses.dataclass(frozen=True)
class Result:
  """What a placer returns: its best placement and how it got there.

  Attributes:
    strategy: name of the placer.
    placement: the best feasible placement that it found.
    evaluation: what that costs, by the evaluator it was given.
    history: improvements, in order.
    seconds: that it took.
    evaluations: placements that it evaluated.
    tried: of `auto`, one result per placer that found a placement.
    skipped: of `auto`, strategy -> why it gave none; of annealing, the same of
      starts that failed unexpectedly.
  """

  strategy: str
  placement: Placement
  evaluation: Evaluation
  history: tuple[HistoryPoint, ...]
  seconds: float
  evaluations: int
  tried: "tuple[Result, ...]" = ()
  skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Budget:
  """How long a placer may take.

  Attributes:
    seconds: wall-clock seconds; one-shot placers may ignore it.
    max_evaluations: placements that may be evaluated, or None.
    started: `time.perf_counter()` when the clock began.
  """

  seconds: float
  max_evaluations: int | None = None
  started: float = dataclasses.field(default_factory=time.perf_counter)

  @property
  def left_s(self) -> float:
    return self.seconds - (time.perf_counter() - self.started)

  @property
  def spent(self) -> float:
    """Share of the seconds that has gone by; above 1 when they are over."""
    return (time.perf_counter() - self.started) / max(self.seconds, 1e-9)


class Placer(Protocol):
  """An algorithm that proposes a placement. Deterministic given its seed
  and a number of evaluations; never returns a placement that the problem does
  not allow.
  """

  name: str

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """Proposes the best placement that it finds within `budget`.

    Raises:
      InfeasibleError: nothing that it tried fits in memory.
    """
