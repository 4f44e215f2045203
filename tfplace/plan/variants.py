"""Step variants, the record of their trials, and the choice among them.

A step variant is the step with one choice of microbatches and
recomputation.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tfplace.core.evaluation import Result
from tfplace.core.microbatches import WHOLE, VariantConfig
from tfplace.core.order import ARRIVAL, LEAST_GAIN, RANK
from tfplace.core.problem import Problem
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError, TfplaceError

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.plan.live_step import LiveStep


@dataclasses.dataclass(frozen=True)
class StepVariant:
  """Step with one choice of microbatches and of what becomes of activations.

  Attributes:
    problem: graph and cluster, with the costs for the search.
    traced: the traced step, or None if it is not needed.
    live: open devices, whose measured costs `problem` has, or None.
  """

  problem: Problem
  traced: "TracedStep | None" = None
  live: "LiveStep | None" = None


# Extracts a step variant. Raises `TfplaceError` if it is impossible.
OpenVariant: TypeAlias = Callable[[VariantConfig], StepVariant]


@dataclasses.dataclass(eq=False)
class VariantTrial:
  """Trial of one step variant, an arm of the search among variants.

  Attributes:
    microbatches: the step variant.
    best: best placement found, or None.
    seconds: search time in seconds.
    why: reason why there is no placement; "" if there is one.
    measured_us: step time of the fastest measured placement, or None.
    variant: the extracted variant while it may win; it may hold a copy of the
      weights.
    single: best placement on one device, or None.
    error: error of the last search, or None.
    other_order_us: step time in the order that the first search rejected.
    bound_us: proven lower bound of the step time, or 0 for measured costs.
  """

  microbatches: VariantConfig
  best: Result | None = None
  seconds: float = 0.0
  why: str = ""
  measured_us: float | None = None
  variant: StepVariant | None = None
  single: Result | None = None
  error: TfplaceError | None = None
  other_order_us: float | None = None
  bound_us: float = 0.0

  @property
  def order(self) -> str:
    """Order of the best placement; "" if there is no placement."""
    return "" if self.best is None else self.best.order

  @property
  def step_time_us(self) -> float:
    """Step time of the best placement, measured if available, or infinity."""
    if self.measured_us is not None:
      return self.measured_us
    if self.best is None:
      return float("inf")
    return self.best.evaluation.step_time_us

  @property
  def exceeds_memory(self) -> bool:
    """Returns whether the last search found nothing that fits."""
    return isinstance(self.error, InfeasibleError)

  @property
  def opened(self) -> StepVariant:
    """The variant, which a trial has while it may win."""
    if self.variant is None:
      raise TfplaceError(f"the step {in_words(self.microbatches)} is not open")
    return self.variant


@dataclasses.dataclass(frozen=True)
class VariantChoice:
  """Choice of one step variant among all trials.

  Attributes:
    trials: trials in order of execution; the first is the step as it was
      requested, whole if microbatches are chosen.
    microbatches: chosen step variant.
    single: the first variant on the best single device, or None if no device
      has enough memory.
    refused: reason why the step cannot be split; "" if it can.
    allowed: estimate of a step whose microbatches may use their own batch
      statistics. None unless these statistics are the only obstacle.
  """

  trials: Sequence[VariantTrial]
  microbatches: VariantConfig
  single: Result | None = None
  refused: str = ""
  allowed: VariantTrial | None = None

  @property
  def is_first(self) -> bool:
    """Returns whether the step is chosen as it was requested."""
    return self.microbatches == self.trials[0].microbatches

  @property
  def reason(self) -> str:
    """Reason for the choice, as part of a sentence."""
    first, others = self.trials[0], self.trials[1:]
    if not self.is_first:
      return f"the step {_is_changed(self.microbatches)}, since {_found(first)}"
    left = f"the step is left {in_words(first.microbatches)}"
    if self.refused:
      _, _, why = self.refused.rpartition(" cannot be split: ")
      return f"{left}, since {why}{self._if_allowed()}"
    if not others:
      return f"{left}, since there is one device for it"
    best = min(others, key=lambda t: (t.measured_us is None, t.step_time_us))
    return f"{left}, since {_found(best)}"

  def _if_allowed(self) -> str:
    """Describes the gain from allowing statistics of a microbatch."""
    whole_us = self.trials[0].step_time_us
    if self.allowed is None or self.allowed.step_time_us >= whole_us:
      return ""
    return f"; so allowed, {would_take(self.allowed, whole_us)}"


def _found(trial: VariantTrial) -> str:
  how = in_words(trial.microbatches)
  if trial.best is None:
    return f"{how} it {trial.why}"
  where = "for the whole step" if how == in_words(WHOLE) else how
  return (
    f"nothing faster than {format_us(trial.step_time_us)} was found {where}"
  )


def would_take(trial: VariantTrial, whole_us: float) -> str:
  """Describes the estimate of another variant, as part of a sentence."""
  instead = (
    "" if whole_us == float("inf") else f" instead of {format_us(whole_us)}"
  )
  return (
    f"{in_words(trial.microbatches)} it would take about"
    f" {format_us(trial.step_time_us)}{instead}"
  )


def order_reason(order: str, other_us: float | None) -> str:
  """Describes the reason for an order, as part of a sentence.

  Args:
    order: order of the plan.
    other_us: best step time in the other order, infinite if nothing fits. None
      if the order was not chosen.
  """
  if other_us is None:
    return ""
  texts = {ARRIVAL: "as they become ready", RANK: "by rank"}
  (other,) = (text for name, text in texts.items() if name != order)
  found = f"nothing faster than {format_us(other_us)} was found"
  if math.isinf(other_us):
    found = "nothing was found that fits in memory"
  enough = ""
  if order == ARRIVAL and math.isfinite(other_us):
    enough = f", and it must gain {LEAST_GAIN:.0%}"
  return f"devices run their ops {texts[order]}, since {other} {found}{enough}"


def in_words(microbatches: VariantConfig) -> str:
  """Describes a step variant, such as "in 4 microbatches with 2 in flight"."""
  count = "whole" if microbatches.is_whole else f"in {_counted(microbatches)}"
  return ", ".join((count, *_activations_in_words(microbatches)))


def _is_changed(microbatches: VariantConfig) -> str:
  """Describes a changed step, such as "is split into 4 microbatches"."""
  count = f"is split into {_counted(microbatches)}"
  activations = _activations_in_words(microbatches)
  if microbatches.is_whole:
    return f"runs {' and '.join(activations)}"
  return " ".join((count, *activations))


def _activations_in_words(microbatches: VariantConfig) -> list[str]:
  found = []
  if microbatches.recompute.everything:
    found.append("with all layers recomputed")
  elif not microbatches.recompute.is_none:
    found.append(f"with {microbatches.recompute} recomputed")
  return found


def _counted(microbatches: VariantConfig) -> str:
  flight = microbatches.max_in_flight
  held = "" if flight is None else f" with {flight} in flight"
  return f"{microbatches.words}{held}"
