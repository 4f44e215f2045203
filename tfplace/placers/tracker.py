"""The best placement found by a placer, and its history."""

import math
import time
from collections.abc import Sequence

import numpy as np

from tfplace.errors import InfeasibleError, PlacementError
from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import Evaluation, HistoryPoint, Result
from tfplace.graph.placement import Placement, check_links
from tfplace.graph.problem import Problem
from tfplace.graph.protocols import Evaluator
from tfplace.graph.quantities import exact_bytes, format_bytes

_MAX_DEVICES = 4  # Maximum number of devices listed in an error.


def excess(problem: Problem, evaluation: Evaluation) -> dict[str, float]:
  """Returns device -> excess bytes of its peak, in decreasing order."""
  peaks = evaluation.peak_memory_bytes
  over = {
    d.name: peaks.get(d.name, 0.0) - d.memory_bytes
    for d in problem.cluster.devices
  }
  ranked = sorted(over, key=lambda name: (-over[name], name))
  return {name: over[name] for name in ranked if over[name] > 0}


def infeasible(
  message: str, problem: Problem, evaluation: Evaluation
) -> InfeasibleError:
  """Builds an error from the evaluation with the least excess, with advice.

  `message` is its beginning, such as "... found no placement".
  """
  over = excess(problem, evaluation)
  memory = {d.name: d.memory_bytes for d in problem.cluster.devices}
  parts = [
    f"{format_bytes(evaluation.peak_memory_bytes[name])} on {name}, which has"
    f" {format_bytes(memory[name])}, {exact_bytes(size)} too few"
    for name, size in list(over.items())[:_MAX_DEVICES]
  ]
  if len(over) > _MAX_DEVICES:
    parts.append(f"too much on {len(over) - _MAX_DEVICES} more devices")
  device, num_bytes = next(iter(over.items()))
  return InfeasibleError(
    f"{message} of graph {problem.graph.name!r} that fits in memory: the"
    f" nearest needs {', and '.join(parts)}; a smaller batch, more devices, or"
    " devices with more memory would help",
    device=device,
    num_bytes=num_bytes,
    evaluation=evaluation,
  )


def _unlinked(problem: Problem, devices: np.ndarray) -> Evaluation | None:
  """Returns the failed evaluation of a placement without a link, or None."""
  try:
    check_links(problem, devices)
  except PlacementError as error:
    return Evaluation(
      step_time_us=math.inf,
      feasible=False,
      peak_memory_bytes={},
      busy_us={},
      bytes_moved=0.0,
      lower_bound_us=problem.lower_bound_us,
      source="simulated",
      extra={"error": str(error)},
    )
  return None


class Tracker:
  """Evaluates candidates and keeps the best feasible one."""

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
    self.nearest: Evaluation | None = None  # The least infeasible evaluation.
    self._excess = math.inf  # Total excess of `nearest` in bytes.
    self._error: str | None = None
    self._began = time.perf_counter()

  @property
  def is_met(self) -> bool:
    """True if the best placement is within the budget's gap of the bound."""
    return self.best is not None and self.best[1].is_within(self.budget.gap)

  @property
  def is_done(self) -> bool:
    """True if the budget is spent or its gap is met."""
    return self.is_met or self.left.is_over

  @property
  def left(self) -> Budget:
    """The rest of the budget."""
    return self.budget.minus(self.evaluations)

  @property
  def seconds(self) -> float:
    return time.perf_counter() - self._began

  def offer(self, devices: np.ndarray) -> Evaluation:
    """Evaluates one [num_ops] row and keeps it if it is the best so far."""
    return self.offer_all(np.asarray(devices, np.int32).reshape(1, -1))[0]

  def offer_if_better(self, devices: np.ndarray) -> bool:
    """Offers one [num_ops] row if it is better than the best.

    A simulator, which does not check the row, stops at the best step time.

    Returns:
      True if the row is the best so far.
    """
    known = len(self.history)
    if self.best is not None:
      limit_us = self.best[1].step_time_us * (1 - 1e-9)
      if np.isinf(self.evaluator.step_times(devices[None], limit_us)).all():
        self.evaluations += 1
        return False
    self.offer(devices)
    return len(self.history) > known

  def offer_all(self, rows: np.ndarray) -> list[Evaluation]:
    """Evaluates [batch, num_ops] rows at once and keeps the best so far.

    A row that needs a missing link has infinite step time, as in the search.
    """
    failures = [_unlinked(self.problem, row) for row in rows]
    linked = [failure is None for failure in failures]
    judged = iter(self.evaluator.evaluate(rows[linked]) if any(linked) else ())
    evaluations = [failure or next(judged) for failure in failures]
    for devices, evaluation in zip(rows, evaluations, strict=True):
      self._keep(devices, evaluation)
    return evaluations

  def _keep(self, devices: np.ndarray, evaluation: Evaluation) -> None:
    self.evaluations += 1
    if not math.isfinite(evaluation.step_time_us):
      self._error = str(evaluation.extra.get("error", "it could not be run"))
    elif not evaluation.feasible:
      self.note_miss(evaluation)
    elif (
      self.best is None or evaluation.step_time_us < self.best[1].step_time_us
    ):
      self.best = np.array(devices, np.int32), evaluation
      step_time_us = evaluation.step_time_us
      self.history.append(
        HistoryPoint(self.seconds, self.evaluations, step_time_us, self.name)
      )

  def note_miss(self, evaluation: Evaluation) -> None:
    """Keeps an infeasible evaluation if its excess is the smallest so far."""
    missing = sum(excess(self.problem, evaluation).values())
    if missing < self._excess:
      self._excess, self.nearest = missing, evaluation

  def result(self) -> Result:
    """Returns the best placement; raises InfeasibleError if there is none."""
    if self.best is None:
      who = f"strategy {self.name!r}"
      if self.evaluations == 0:
        raise InfeasibleError(f"{who} offered no placement")
      if self.nearest is None:
        raise InfeasibleError(
          f"{who}: no placement could be run: {self._error}"
        )
      message = f"{who} found no placement"
      raise infeasible(message, self.problem, self.nearest)
    devices, evaluation = self.best
    return Result(
      self.name,
      Placement(self.problem, devices),
      evaluation,
      tuple(self.history),
      self.seconds,
      self.evaluations,
    )


def best_first(results: Sequence[Result]) -> list[Result]:
  """Sorts results by step time and removes duplicate placements."""
  ordered = sorted(results, key=lambda r: r.evaluation.step_time_us)
  seen: set[bytes] = set()
  distinct = []
  for result in ordered:
    key = result.placement.devices.tobytes()
    if key not in seen:
      seen.add(key)
      distinct.append(result)
  return distinct


def improvements(points: Sequence[HistoryPoint]) -> tuple[HistoryPoint, ...]:
  """Returns the points that improve on all earlier ones, in time order."""
  best, kept = math.inf, []
  for point in sorted(points, key=lambda p: (p.seconds, p.evaluations)):
    if point.step_time_us < best:
      best = point.step_time_us
      kept.append(point)
  return tuple(kept)
