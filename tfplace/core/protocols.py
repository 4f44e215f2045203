"""The map of the package: what placers and evaluators take and return.

An `Evaluator` says what placements cost, as `Evaluation`s; a `Placer` proposes
one within a `Budget`, as a `Result`. Besides, checks of a caller's arguments.
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

# Proven bounds add and subtract doubles; none loses more than this share.
ROUNDING = 1e-9


def is_optimal(step_time_us: float, lower_bound_us: float) -> bool:
  """Whether a simulated step takes as long as its bound, but for rounding."""
  return step_time_us <= lower_bound_us * (1 + 2 * ROUNDING)


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """One placement's step (`tfplace.evaluation.v1`).

  Attributes:
    step_time_us: end of the last op, microseconds; infinite where the
      placement could not be run (then `extra["error"]` says why).
    feasible: no device's peak exceeds its memory.
    peak_memory_bytes: device name -> bytes.
    busy_us: device name -> op time without overhead.
    bytes_moved: bytes sent between devices.
    lower_bound_us: no placement of the problem is faster.
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
    """The step over its lower bound; at 1, no placement is faster.

    None where the step failed, or where the bound is 0.
    """
    if self.lower_bound_us <= 0 or not math.isfinite(self.step_time_us):
      return None
    return self.step_time_us / self.lower_bound_us

  @property
  def is_optimal(self) -> bool:
    """Whether it fits, and its simulated step is proven to be the shortest."""
    return (
      self.feasible
      and self.source == "simulated"
      and is_optimal(self.step_time_us, self.lower_bound_us)
    )

  def with_extra(self, **extra: Any) -> "Evaluation":
    """A copy with further keys."""
    return dataclasses.replace(self, extra={**self.extra, **extra})

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes `tfplace.evaluation.v1`; an interrupted write loses nothing."""
    results = importlib.import_module("tfplace.formats.results")

    results.save_evaluation(self, path)


class Evaluator(Protocol):
  """Costs placements of one problem, by simulation or by measurement."""

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
    other_order_us: where the order of ops was chosen with the placement, the
      best step found in the other one, infinite where none fits; else None.
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
    """In which devices take their ready ops."""
    return self.placement.problem.order


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


@dataclasses.dataclass(frozen=True)
class OpCosts:
  """What a cost model says of the ops of a step.

  Attributes:
    time_us: device kind -> [num_ops] float64 microseconds; what it says of an
      op on a kind without a kernel for it does not count.
    temp_bytes: [num_ops] float64 held while an op runs, or None for none.
    extra: keys for `OpGraph.extra`, such as the ops whose costs are a guess.
  """

  time_us: Mapping[str, np.ndarray]
  temp_bytes: np.ndarray | None = None
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def fill(self, graph: OpGraph) -> OpGraph:
    """The graph with these costs where its `time_us` is not NaN."""
    time_us = {
      kind: np.where(np.isnan(before), np.nan, self.time_us[kind])
      for kind, before in graph.time_us.items()
    }
    temp_bytes = (
      graph.temp_bytes if self.temp_bytes is None else self.temp_bytes
    )
    return dataclasses.replace(graph, time_us=time_us, temp_bytes=temp_bytes)


class CostModel(Protocol):
  """Says what the ops of a step cost; estimated, measured or learned."""

  name: str

  def op_costs(self, step: Any) -> OpCosts:
    """The costs of a step's ops on each kind of device.

    Args:
      step: a `tfplace.cost.Step`: the graph without costs, TensorFlow's
        nodes and shapes, and the hardware of each kind.
    """


def check_budget(budget_s: float) -> None:
  """Seconds that a placer may take: finite and above 0.

  Raises:
    TfplaceError: they are not.
  """
  check_number("budget_s", budget_s)
  if not 0 < budget_s < math.inf:
    raise TfplaceError(
      f"budget_s is {budget_s}; it must be above 0"
      f"{' and finite' if budget_s > 0 else ''}"
    )


def check_number(name: str, value: Any) -> None:
  """Checks that an argument is a real number; True and False are none.

  Raises:
    TfplaceError: it is not.
  """
  if not isinstance(value, numbers.Real) or isinstance(value, bool):
    raise TfplaceError(f"{name} is {value!r:.60}; it must be a number")


def whole_number(value: Any) -> int | None:
  """The int that a value is, such as a NumPy integer; None where it is none.

  True and False are none.
  """
  if isinstance(value, bool | np.bool_):
    return None
  try:
    return operator.index(value)
  except TypeError:
    return None


def check_count(name: str, value: Any, least: int) -> int:
  """Checks that an argument is a whole number of at least `least`.

  Args:
    name: of the argument.
    value: to check.
    least: value that is allowed.

  Returns:
    The number as an int.

  Raises:
    TfplaceError: it is no such number.
  """
  number = whole_number(value)
  if number is None:
    raise TfplaceError(f"{name} is {value!r:.60}; it must be a whole number")
  if number < least:
    raise TfplaceError(f"{name} is {number}; it must be {least} or more")
  return number
