"""Clock of the steps that a fit runs."""

import collections
import math
import statistics
import time
from collections.abc import Sequence

_SKIPPED = 2  # Executions after a trace: the traced one, and one more.
_MOST_STEPS = 1000  # Step times that are kept.


class StepClock:
  """Clock of the training steps between two events of a fit.

  A step lasts from its begin to the begin of the next one, so waiting for input
  and other callbacks are included. Nothing is synchronized, so the clock does
  not slow the fit down.
  """

  def __init__(self) -> None:
    self._times_us: collections.deque[float] = collections.deque(
      maxlen=_MOST_STEPS
    )
    self._epoch_us: list[float] = []
    self._skipped = 0
    self._began: tuple[float, int] | None = None

  @property
  def step_us(self) -> Sequence[float]:
    """Step times since `restart`, the latest if there are many."""
    return tuple(self._times_us)

  @property
  def epoch_us(self) -> float:
    """Median step time since `start_epoch`, or NaN if no step was timed."""
    return statistics.median(self._epoch_us) if self._epoch_us else math.nan

  def restart(self, is_traced: bool) -> None:
    """Forgets the times.

    Args:
      is_traced: whether the step is traced again, which the first times would
        include.
    """
    self._times_us.clear()
    if is_traced:
      self._epoch_us.clear()
      self._skipped = 0
      self._began = None

  def start_epoch(self) -> None:
    """Begins the epoch of `epoch_us`."""
    self._epoch_us.clear()
    self._began = None

  def begin(self, step: int) -> None:
    """Notes the begin of the step with this number in its epoch."""
    now = time.perf_counter()
    if self._began is not None and step > self._began[1]:
      self._note(now, step)
    self._began = now, step

  def end(self, steps: int) -> None:
    """Notes the end of the last step before a pause.

    Args:
      steps: number of steps since `begin`, 0 if it is unknown.
    """
    if self._began is not None and steps:
      self._note(time.perf_counter(), self._began[1] + steps)
    self._began = None

  def _note(self, now: float, step: int) -> None:
    if self._began is None:
      return
    if self._skipped < _SKIPPED:
      self._skipped += 1
      return
    began, first = self._began
    each_us = (now - began) * 1e6 / (step - first)
    self._times_us.append(each_us)
    self._epoch_us.append(each_us)
