"""Why a placement takes as long as it does, and what would change that."""

import dataclasses

import numpy as np

from tfplace.core.placement import Placement
from tfplace.report.explain.bottleneck import Load, find_loads
from tfplace.report.explain.one_op import OpReport, report_op
from tfplace.report.explain.path import PathSummary, summarize_path
from tfplace.report.explain.what_if import Progress, WhatIf, try_other_hardware
from tfplace.simulate import Schedule, Simulator

# A bottleneck shortens the step by this share at least when twice as fast.
MIN_GAIN = 0.01


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
  """Why a step takes as long as it does.

  Attributes:
    schedule: the simulated step.
    path: its critical path, added up.
    loads: devices and links, by what each would gain if twice as fast.
    what_if: the step on other hardware; the first is the cluster as it is.
    op: the op that was asked for, if any.
  """

  schedule: Schedule
  path: PathSummary
  loads: tuple[Load, ...]
  what_if: tuple[WhatIf, ...]
  op: OpReport | None = None

  @property
  def ratio_to_bound(self) -> float | None:
    """Step time over the lower bound; None where that is 0."""
    bound_us = self.schedule.placement.problem.lower_bound_us
    return self.schedule.step_time_us / bound_us if bound_us > 0 else None

  @property
  def bottleneck(self) -> Load | None:
    """What gains most by being twice as fast, if anything gains at all."""
    least_us = MIN_GAIN * self.schedule.step_time_us
    best = self.loads[0] if self.loads else None
    return best if best is not None and best.gain_us > least_us else None

  @property
  def is_feasible(self) -> bool:
    """Every device's peak is within its memory."""
    limits = self.schedule.placement.problem.cluster.memory_bytes
    return bool(np.all(self.schedule.peak_memory_bytes <= limits))


def explain(
  placement: Placement,
  op: str | None = None,
  seconds: float = 0.0,
  seed: int = 0,
  on_progress: Progress | None = None,
) -> Explanation:
  """Explains a placement by simulating it, and changes of it.

  Args:
    placement: of a problem; with `bounds.tightened`, its bound is the proven
      one, else the simple one of the formats.
    op: name of an op to look at.
    seconds: to search a new placement for each change of the hardware; 0
      searches none.
    seed: of the searches.
    on_progress: told what is tried next.

  Raises:
    TfplaceError: there is no such op.
  """
  schedule = Simulator(placement.problem).schedule(placement)
  return Explanation(
    schedule=schedule,
    op=None if op is None else report_op(schedule, op),
    path=summarize_path(schedule),
    loads=find_loads(schedule),
    what_if=try_other_hardware(schedule, seconds, seed, on_progress),
  )
