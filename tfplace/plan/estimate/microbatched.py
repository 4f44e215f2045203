"""Microbatched steps predicted from the whole step and one that is traced.

Of a step in k microbatches with one in flight, all that a microbatch holds
shrinks with k, and gradients are added up beside it. Predicted peaks and times
are up to 3% too high (`benchmarks.placement.run_estimates --times=8`).
"""

import dataclasses
import math
from collections.abc import Sequence

from tfplace.plan.estimate import fits
from tfplace.plan.estimate.config import CONFIG


@dataclasses.dataclass(frozen=True)
class Predicted:
  """A step in `count` microbatches on one device."""

  count: int
  step_time_us: float
  peak_memory_bytes: float


def first_count(
  whole: fits.OneDevice, gradient_bytes: float, counts: Sequence[int]
) -> int:
  """Returns the fewest microbatches that should fit, or the most there are.

  Args:
    whole: the whole step on one device.
    gradient_bytes: bytes of the gradients that are added up.
    counts: numbers of microbatches, ascending.
  """
  held = whole.held_bytes + gradient_bytes
  moving = whole.peak_memory_bytes - whole.held_bytes
  for count in counts:
    peak = (held + moving / count) * (1 + CONFIG.first_margin)
    if peak <= whole.memory_bytes:
      return count
  return counts[-1]


def between(
  whole: fits.OneDevice,
  split: fits.OneDevice,
  *,
  split_count: int,
  count: int,
  gradient_bytes: float,
) -> Predicted:
  """Predicts a step in fewer microbatches than one that is simulated.

  At each instant, memory is affine in the size of a microbatch, so the peak is
  convex and at most what lies on the line between two sizes.

  Args:
    whole: the whole step on one device.
    split: the step in `split_count` microbatches on it.
    split_count: its microbatches.
    count: more than one microbatch, and fewer than `split_count`.
    gradient_bytes: bytes of the gradients that are added up.
  """
  peak = _at(
    split.peak_memory_bytes,
    whole.peak_memory_bytes + gradient_bytes,
    (1 / count - 1 / split_count) / (1 - 1 / split_count),
  )
  # Launches grow with the count. The work per example follows the shapes of
  # the kernels, about as much with each halving of the microbatch.
  work_us = _at(
    whole.work_us, split.work_us, math.log(count) / math.log(split_count)
  )
  rest_us = _at(
    whole.schedule.step_time_us - whole.work_us,
    split.schedule.step_time_us - split.work_us,
    (count - 1) / (split_count - 1),
  )
  return Predicted(count, work_us + rest_us, peak)


def _at(first: float, last: float, share: float) -> float:
  return first + (last - first) * share
