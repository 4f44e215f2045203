"""What one placement costs, simulated or measured."""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

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
    from tfplace.graph import evaluation_format  # it imports this module

    evaluation_format.save_evaluation(self, path)
