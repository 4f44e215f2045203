"""Estimates of a step's memory and time on one or several devices.

Plain data: `tfplace.plan.estimate` computes it, `tfplace.formats`
writes it.
"""

import dataclasses
from collections.abc import Mapping

from tfplace.graph.argument_checks import Text, Unlimited
from tfplace.graph.quantities import format_bytes, format_share, format_us

# Roles of a step's variables.
TRAINABLE, NON_TRAINABLE = "trainable", "non_trainable"
OPTIMIZER, OTHER = "optimizer", "other_variables"
ROLES = (TRAINABLE, NON_TRAINABLE, OPTIMIZER, OTHER)
# Parts of the memory of a device besides variables.
READS, ACTIVATIONS = "variable_reads", "activations"
GRADIENTS, TEMPORARY = "gradients", "temporary"
PARTS = (*ROLES, READS, ACTIVATIONS, GRADIENTS, TEMPORARY)


@dataclasses.dataclass(frozen=True)
class WeightSizes:
  """Numbers of scalars and bytes of a model's variables.

  `model.summary()` prints the same numbers.

  Attributes:
    trainable_count: scalars of trainable weights.
    trainable_bytes: bytes of trainable weights; as many as their gradients.
    non_trainable_count: scalars of other weights, such as moving statistics.
    non_trainable_bytes: bytes of other weights.
    optimizer_count: scalars of the optimizer: slots, rate, counters.
    optimizer_bytes: bytes of the optimizer.
  """

  trainable_count: int = 0
  trainable_bytes: float = 0.0
  non_trainable_count: int = 0
  non_trainable_bytes: float = 0.0
  optimizer_count: int = 0
  optimizer_bytes: float = 0.0


@dataclasses.dataclass(frozen=True)
class LayerBytes:
  """Bytes of one layer's activations at the peak."""

  name: str
  num_bytes: float


@dataclasses.dataclass(frozen=True)
class PeakMemory:
  """Memory of one device at the first instant of its peak.

  Attributes:
    device: card of the table that runs the step.
    at_us: time of the peak in the step.
    num_bytes: the peak, the sum of `parts`.
    parts: each of `PARTS` -> bytes.
    layers: the layers with the most activations at the peak, largest first.
  """

  device: str
  at_us: float
  num_bytes: float
  parts: Mapping[str, float]
  layers: tuple[LayerBytes, ...]


@dataclasses.dataclass(frozen=True)
class SmallestFit:
  """Fewest devices of one card that a step variant was found to fit on.

  Attributes:
    variant: name of the step variant, such as "whole" or "microbatches".
    num_devices: devices that the placement may use.
    microbatches: number of microbatches; 1 for the whole step.
    max_in_flight: largest number of microbatches in flight.
    strategy: placer that found the placement.
    step_time_us: simulated step time of that placement.
    peak_memory_bytes: peak of its fullest device.
  """

  variant: str
  num_devices: int
  microbatches: int
  max_in_flight: int
  strategy: str
  step_time_us: float
  peak_memory_bytes: float


@dataclasses.dataclass(frozen=True)
class CardEstimate:
  """The step on one device of one card, and the fewest devices that hold it.

  Attributes:
    name: GPU of a preset, or the name of a cluster.
    model: name of the hardware; "" if unknown.
    memory_bytes: memory of one device; infinite if unlimited.
    peak_memory_bytes: peak of the step on one device.
    fits: whether the step fits on one device.
    step_time_us: simulated step time on one device, whether it fits or not.
    share_of_peak: MFU on one device, or None if no peak is known.
    smallest: per step variant the fewest devices; a variant for which no
      placement was found is absent.
  """

  name: str
  model: Text
  memory_bytes: Unlimited
  peak_memory_bytes: float
  fits: bool
  step_time_us: float
  share_of_peak: float | None
  smallest: tuple[SmallestFit, ...]

  def smallest_of(self, variant: str) -> SmallestFit | None:
    """Returns the smallest fit of a step variant, or None."""
    fits = (fit for fit in self.smallest if fit.variant == variant)
    return next(fits, None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepEstimate:
  """Estimate of a step in one precision.

  Attributes:
    precision: name of Keras' dtype policy, or "" for a graph without one.
    num_ops: ops of the step.
    weights: sizes of the model's variables, or None without a Keras model.
    gradient_bytes: bytes of one gradient of every trainable weight; 0 in
      inference.
    peak: memory on one device at the peak.
    cards: one row per card.
    variants: names of the step variants that were tried.
    notes: sentences about what was not tried, and why.
  """

  precision: Text
  num_ops: int
  weights: WeightSizes | None = None
  gradient_bytes: float
  peak: PeakMemory
  cards: tuple[CardEstimate, ...]
  variants: tuple[str, ...] = ()
  notes: tuple[str, ...] = ()


MAX_BATCH = 1 << 20  # Largest batch that is tried.


@dataclasses.dataclass(frozen=True)
class LargestBatch:
  """Largest batch whose step was found to fit on a cluster.

  Attributes:
    cluster: name of the cluster.
    batch_size: examples; this batch fits, and one more example does not, unless
      it is `MAX_BATCH`.
    strategy: placer of the placement that fits.
    step_time_us: simulated step time of that placement.
    peak_memory_bytes: peak of its fullest device.
    tried: batch sizes that were traced and simulated, in order.
  """

  cluster: str
  batch_size: int
  strategy: str
  step_time_us: float
  peak_memory_bytes: float
  tried: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Estimate:
  """Estimate of one model's step.

  Attributes:
    model: name of the model.
    batch_size: examples per step; 0 if the graph does not say.
    training: whether it is a training step.
    steps: the step in each precision.
    notes: sentences about the model as a whole.
    largest_batch: largest batch on a cluster, if asked for.
  """

  model: str
  batch_size: int
  training: bool
  steps: tuple[StepEstimate, ...]
  notes: tuple[str, ...] = ()
  largest_batch: LargestBatch | None = None

  def __str__(self) -> str:
    kind = "training" if self.training else "inference"
    size = f" of {self.batch_size} example{'s' * (self.batch_size != 1)}"
    lines = [f"{self.model}, {kind} step{size if self.batch_size else ''}"]
    for step in self.steps:
      lines.append(f"{step.precision or 'as traced'}:")
      lines += [f"  {_as_line(card)}" for card in step.cards]
    return "\n".join([*lines, *self.notes])


def _as_line(card: CardEstimate) -> str:
  """Describes one card: `v100: 3.16 GiB of 16 GiB, 185 ms, 40% of peak`."""
  need, room = format_bytes(card.peak_memory_bytes), "unlimited memory"
  if card.memory_bytes != float("inf"):
    room = format_bytes(card.memory_bytes)
  rest = "" if card.fits else ", does not fit"
  if card.share_of_peak is not None:
    rest = f", {format_share(card.share_of_peak, 1)} of peak{rest}"
  return f"{card.name}: {need} of {room}, {format_us(card.step_time_us)}{rest}"
