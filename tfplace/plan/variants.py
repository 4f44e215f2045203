"""Step variants, the record of their trials, and the choice among them.

A step variant is the step with one choice of microbatches and
recomputation.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph.evaluation import Result
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.graph.order import ARRIVAL, LEAST_GAIN, RANK
from tfplace.graph.problem import Problem
from tfplace.graph.quantities import format_us

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.measure.cluster import LiveStep


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


@dataclasses.dataclass(eq=False)
class VariantTrial:
  """Search for a placement of one step variant.

  Attributes:
    variant: the step variant.
    step: the extracted step while it may win; it may hold a copy of the
      weights.
    best: best placement found, or None.
    single: best placement on one device, or None.
    seconds: search time in seconds.
    why: reason why there is no placement; "" if there is one.
    error: error of the extraction or of the last search, or None.
    measured_us: step time of the fastest measured placement, or None.
    bound_us: proven lower bound of the step time, or 0 for measured costs.
  """

  variant: VariantConfig
  step: StepVariant | None = None
  best: Result | None = None
  single: Result | None = None
  seconds: float = 0.0
  why: str = ""
  error: TfplaceError | None = None
  measured_us: float | None = None
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
      return math.inf
    return self.best.evaluation.step_time_us

  @property
  def least_us(self) -> float:
    """Step time, or the bound for whose sake nothing was searched."""
    is_skipped = self.best is None and self.error is None
    return self.bound_us if is_skipped else self.step_time_us

  @property
  def exceeds_memory(self) -> bool:
    """Returns whether the last search found nothing that fits."""
    return isinstance(self.error, InfeasibleError)

  @property
  def is_refused(self) -> bool:
    """Returns whether the step cannot be extracted or placed this way."""
    return self.error is not None and not self.exceeds_memory

  @property
  def opened(self) -> StepVariant:
    """The extracted step, which a trial has while it may win."""
    if self.step is None:
      raise TfplaceError(f"the step {in_words(self.variant)} is not open")
    return self.step


@dataclasses.dataclass(frozen=True)
class VariantChoice:
  """Choice of one step variant among all trials.

  Attributes:
    trials: trials in order of execution; the first is the step as it was
      requested, whole if microbatches are chosen.
    variant: chosen step variant.
    single: the first variant on the best single device, or None if no device
      has enough memory.
    refused: reason why the step cannot be split; "" if it can.
  """

  trials: Sequence[VariantTrial]
  variant: VariantConfig
  single: Result | None = None
  refused: str = ""

  @property
  def is_first(self) -> bool:
    """Returns whether the step is chosen as it was requested."""
    return self.variant == self.trials[0].variant

  @property
  def reason(self) -> str:
    """Reason for the choice, as part of a sentence."""
    first, others = self.trials[0], self.trials[1:]
    if not self.is_first:
      return f"the step {_is_changed(self.variant)}, since {_result(first)}"
    left = f"the step is left {in_words(first.variant)}"
    if self.refused:
      _, _, why = self.refused.rpartition(" cannot be split: ")
      return f"{left}, since {why}"
    if not others:
      return f"{left}, since there is one device for it"
    best = min(others, key=lambda t: (t.measured_us is None, t.step_time_us))
    return f"{left}, since {_result(best)}"


def _result(trial: VariantTrial) -> str:
  """Describes what the search for a variant found."""
  how = in_words(trial.variant)
  if trial.best is None:
    return f"{how} it {trial.why}"
  where = "for the whole step" if how == in_words(WHOLE) else how
  return (
    f"nothing faster than {format_us(trial.step_time_us)} was found {where}"
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
  result = f"nothing faster than {format_us(other_us)} was found"
  if math.isinf(other_us):
    result = "nothing was found that fits in memory"
  enough = ""
  if order == ARRIVAL and math.isfinite(other_us):
    enough = f", and it must gain {LEAST_GAIN:.0%}"
  return f"devices run their ops {texts[order]}, since {other} {result}{enough}"


def in_words(variant: VariantConfig) -> str:
  """Describes a step variant, such as "in 4 microbatches with 2 in flight"."""
  count = "whole" if variant.is_whole else f"in {_counted(variant)}"
  return ", ".join((count, *_activations_in_words(variant)))


def _is_changed(variant: VariantConfig) -> str:
  """Describes a changed step, such as "is split into 4 microbatches"."""
  activations = _activations_in_words(variant)
  if variant.is_whole:
    return f"runs {' and '.join(activations)}"
  return " ".join((f"is split into {_counted(variant)}", *activations))


def _activations_in_words(variant: VariantConfig) -> list[str]:
  if variant.recompute.everything:
    return ["with all layers recomputed"]
  if variant.recompute.is_none:
    return []
  return [f"with {variant.recompute} recomputed"]


def _counted(variant: VariantConfig) -> str:
  flight = variant.max_in_flight
  held = "" if flight is None else f" with {flight} in flight"
  return f"{variant.words}{held}"
