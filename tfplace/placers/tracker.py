"""Keeps the best placement that a placer has tried, and how it got there."""

import math
import time

import numpy as np

from tfplace.errors import InfeasibleError
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers.base import Budget, Evaluator, HistoryPoint, Result


def overflow(problem: Problem, evaluation: Evaluation) -> tuple[float, str]:
  """Bytes by which the fullest device is over its memory, and its name.

  At or below 0 where all fits: then minus the least room that is left.
  """
  return max(
    (evaluation.peak_memory_bytes.get(d.name, 0.0) - d.memory_bytes, d.name)
    for d in problem.cluster.devices
  )


class Tracker:
  """Evaluates candidates and remembers the best feasible one."""

  def __init__(
    self, name: str, problem: Problem, evaluator: Evaluator, budget: Budget
  ) -> None:
    self.name = name
    self.problem = problem
    self.evaluator = evaluator
    self.budget = budget
    self.evaluations = 0
    self.history: list[HistoryPoint] = []
    self.best: tuple[np.ndarray, Evaluation] | None = None
    self._nearest: tuple[float, str] = (math.inf, "")
    self._error: str | None = None
    self._began = time.perf_counter()

  @property
  def is_optimal(self) -> bool:
    """Whether the best is proven to be the best of all."""
    return self.best is not None and self.best[1].is_optimal

  @property
  def is_done(self) -> bool:
    """Whether the budget is spent, or nothing better exists."""
    limit = self.budget.max_evaluations
    return (
      self.is_optimal
      or self.budget.left_s <= 0
      or (limit is not None and self.evaluations >= limit)
    )

  @property
  def seconds(self) -> float:
    return time.perf_counter() - self._began

  def offer(self, devices: np.ndarray) -> Evaluation:
    """Evaluates one [num_ops] row and keeps it if it is the best so far."""
    return self.offer_all(np.asarray(devices, np.int32).reshape(1, -1))[0]

  def offer_all(self, rows: np.ndarray) -> list[Evaluation]:
    """Evaluates [batch, num_ops] rows at once, and keeps the best so far."""
    evaluations = self.evaluator.evaluate(rows)
    for devices, evaluation in zip(rows, evaluations, strict=True):
      self._keep(devices, evaluation)
    return evaluations

  def _keep(self, devices: np.ndarray, evaluation: Evaluation) -> None:
    self.evaluations += 1
    if not math.isfinite(evaluation.step_time_us):
      self._error = str(evaluation.extra.get("error", "it could not be run"))
    elif not evaluation.feasible:
      self._nearest = min(self._nearest, overflow(self.problem, evaluation))
    elif (
      self.best is None or evaluation.step_time_us < self.best[1].step_time_us
    ):
      self.best = np.array(devices, np.int32), evaluation
      self.record(evaluation.step_time_us)

  def record(self, step_time_us: float) -> None:
    """Notes an improvement found at this moment."""
    self.history.append(
      HistoryPoint(self.seconds, self.evaluations, step_time_us, self.name)
    )

  def result(self) -> Result:
    """The best feasible placement.

    Raises:
      InfeasibleError: no candidate fits (or ran at all).
    """
    if self.best is None:
      raise self._infeasible()
    devices, evaluation = self.best
    return Result(
      self.name,
      Placement(self.problem, devices),
      evaluation,
      tuple(self.history),
      self.seconds,
      self.evaluations,
    )

  def _infeasible(self) -> InfeasibleError:
    missing, device = self._nearest
    if not math.isfinite(missing):
      return InfeasibleError(
        f"strategy {self.name!r}: no placement could be run: {self._error}"
      )
    return InfeasibleError(
      f"strategy {self.name!r} found no placement that fits in memory: the"
      f" nearest needs {missing:.0f} bytes more than {device} has",
      device=device,
      num_bytes=missing,
    )
