"""Evaluated placements, and the results and history of a search."""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

from tfplace.graph.argument_checks import Unlimited
from tfplace.graph.placement import Placement

GIVEN = "init"  # Strategy of placements that a search starts from.
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

  step_time_us: Unlimited
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
    return self.is_within(0.0)

  def is_within(self, gap: float) -> bool:
    """Returns whether it is simulated, fits and is this close to its bound.

    Args:
      gap: share of the lower bound by which the step time may exceed it.
    """
    return (
      self.feasible
      and self.source == "simulated"
      and is_optimal(self.step_time_us, self.lower_bound_us * (1 + gap))
    )

  def with_extra(self, **extra: Any) -> "Evaluation":
    """Returns a copy with further keys."""
    return dataclasses.replace(self, extra={**self.extra, **extra})

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes `tfplace.evaluation.v1` atomically."""
    from tfplace.formats import results  # It reads this class.

    results.save_evaluation(self, path)


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
    all_on_gpus_us: if CPUs compute beside GPUs because that gains enough, the
      best step time found otherwise, infinite if nothing fits; else None.
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
  all_on_gpus_us: float | None = None

  @property
  def order(self) -> str:
    """Execution order of ready ops."""
    return self.placement.problem.order
