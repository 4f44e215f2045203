"""Interfaces of evaluators, placers and cost models, and what they return.

An `Evaluator` returns the `Evaluation`s of placements. A `Placer` searches for
a placement within a `Budget` and returns a `Result`.
"""

import dataclasses
import importlib
import math
import numbers
import operator
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tfplace.core.op_graph import OpGraph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError

# Maximum relative rounding error of the proven bounds.
ROUNDING = 1e-9


def is_optimal(step_time_us: float, lower_bound_us: float) -> bool:
  """Returns True if the simulated step equals its bound up to rounding."""
  return step_time_us <= lower_bound_us * (1 + 2 * ROUNDING)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The evaluated step of a placement (`tfplace.evaluation.v1`).

  Attributes:
    step_time_us: end of the last op in microseconds; infinite if the placement
      could not be run (then `extra["error"]` gives the reason).
    feasible: True if no device's peak exceeds its memory.
    peak_memory_bytes: device name -> bytes.
    busy_us: device name -> op time without overhead.
    bytes_moved: bytes sent between devices.
    lower_bound_us: lower bound of the step time of any placement.
    source: "simulated" or "measured".
    extra: further keys, such as `strategy`, `seconds` and `evaluations`.
  """

  step_time_us: float
  feasible: bool
  peak_memory_bytes: Mapping[str, float]
  busy_us: Mapping[str, float]
  bytes_moved: float
  lower_bound_us: float
  source: str
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def ratio_to_bound(self) -> float | None:
    """Step time over its bound; None if the step failed or the bound is 0."""
    if self.lower_bound_us <= 0 or not math.isfinite(self.step_time_us):
      return None
    return self.step_time_us / self.lower_bound_us

  @property
  def is_optimal(self) -> bool:
    """True if the simulated placement fits and is proven optimal."""
    return (
      self.feasible
      and self.source == "simulated"
      and is_optimal(self.step_time_us, self.lower_bound_us)
    )

  def with_extra(self, **extra: Any) -> "Evaluation":
    """Returns a copy with further keys."""
    return dataclasses.replace(self, extra={**self.extra, **extra})

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes `tfplace.evaluation.v1` atomically."""
    results = importlib.import_module("tfplace.formats.results")

    results.save_evaluation(self, path)


class Evaluator(Protocol):
  """Evaluates placements of one problem by simulation or measurement."""

  problem: Problem

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Evaluates [batch, num_ops] device indices or `Placement`s, in order."""


@dataclasses.dataclass(frozen=True)
class HistoryPoint:
  """An improvement during a search.

  Attributes:
    seconds: time since the search began.
    evaluations: number of placements evaluated so far.
    step_time_us: best feasible step time so far.
    strategy: name of the placer that found it.
  """

  seconds: float
  evaluations: int
  step_time_us: float
  strategy: str


@dataclasses.dataclass(frozen=True)
class Result:
  """The best placement of a placer and the history of its search.

  Attributes:
    strategy: name of the placer.
    placement: best feasible placement found.
    evaluation: its evaluation by the placer's evaluator.
    history: improvements, in order.
    seconds: duration of the search.
    evaluations: number of placements evaluated.
    tried: for `auto`, one result per placer that found a placement.
    skipped: strategy -> reason; for `auto`, placers without a placement, for
      `annealing`, starts that failed unexpectedly.
    other_order_us: best step time found in the other execution order if the
      order was chosen with the placement, infinite if nothing fits; else None.
  """

  strategy: str
  placement: Placement
  evaluation: Evaluation
  history: tuple[HistoryPoint, ...]
  seconds: float
  evaluations: int
  tried: "tuple[Result, ...]" = ()
  skipped: Mapping[str, str] = dataclasses.field(default_factory=dict)
  other_order_us: float | None = None

  @property
  def order(self) -> str:
    """Execution order of ready ops."""
    return self.placement.problem.order


@dataclasses.dataclass(frozen=True)
class Budget:
  """The time and number of evaluations that a placer may use.

  Attributes:
    seconds: wall-clock seconds; one-shot placers may ignore it.
    max_evaluations: maximum number of evaluated placements, or None.
    started: `time.perf_counter()` at the start of the clock.
  """

  seconds: float
  max_evaluations: int | None = None
  started: float = dataclasses.field(default_factory=time.perf_counter)

  @property
  def left_s(self) -> float:
    return self.seconds - (time.perf_counter() - self.started)

  @property
  def spent(self) -> float:
    """Elapsed fraction of `seconds`; above 1 when they are over."""
    return (time.perf_counter() - self.started) / max(self.seconds, 1e-9)


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
    temp_bytes = (
      graph.temp_bytes if self.temp_bytes is None else self.temp_bytes
    )
    return dataclasses.replace(
      graph,
      time_us=time_us,
      temp_bytes=temp_bytes,
      peak_us=graph.peak_us if self.peak_us is None else self.peak_us,
    )


class CostModel(Protocol):
  """A model of op costs: estimated, measured or learned."""

  name: str

  def op_costs(self, step: Any) -> OpCosts:
    """Returns the costs of a step's ops on each device kind.

    Args:
      step: a `tfplace.cost.Step`: the graph without costs, TensorFlow's nodes
        and shapes, and the hardware of each kind.
    """


def check_budget(budget_s: float) -> None:
  """Raises TfplaceError unless a budget in seconds is finite and above 0."""
  check_number("budget_s", budget_s)
  if not 0 < budget_s < math.inf:
    raise TfplaceError(
      f"budget_s is {budget_s}; it must be above 0"
      f"{' and finite' if budget_s > 0 else ''}"
    )


def check_number(name: str, value: Any) -> None:
  """Raises TfplaceError unless an argument is a real number and not a bool."""
  if not isinstance(value, numbers.Real) or isinstance(value, bool):
    raise TfplaceError(f"{name} is {value!r:.60}; it must be a number")


def whole_number(value: Any) -> int | None:
  """Converts an integer, such as NumPy's, to int; None for all else or bool."""
  if isinstance(value, bool | np.bool_):
    return None
  try:
    return operator.index(value)
  except TypeError:
    return None


def check_count(name: str, value: Any, least: int) -> int:
  """Returns an integer argument of at least `least` as an int.

  Args:
    name: name of the argument, for the error message.
    value: value to check.
    least: smallest allowed value.

  Raises:
    TfplaceError: the value is not such an integer.
  """
  number = whole_number(value)
  if number is None:
    raise TfplaceError(f"{name} is {value!r:.60}; it must be a whole number")
  if number < least:
    raise TfplaceError(f"{name} is {number}; it must be {least} or more")
  return number
