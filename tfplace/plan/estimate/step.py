"""One step of a model in one precision, estimated on every card."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfplace.core.estimate import CardEstimate, SmallestFit, StepEstimate
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.progress import Progress
from tfplace.core.recompute import RecomputeConfig
from tfplace.errors import ExtractionError
from tfplace.plan.estimate import cards, fits
from tfplace.plan.estimate.cards import MAX_DEVICES, Card
from tfplace.plan.estimate.peak import peak_memory
from tfplace.plan.estimate.steps import StepSource

if TYPE_CHECKING:
  from tfplace.core.op_graph import OpGraph
  from tfplace.extraction.traced import TracedStep

_WHOLE, _MICROBATCHES = "whole", "microbatches"
_RECOMPUTED = "recomputation"
# Tried, ascending and one in flight, where one device does not hold the step.
_MICROBATCH_COUNTS = (2, 4, 8)


@dataclasses.dataclass(frozen=True)
class EstimatedStep:
  """The step of a model in one precision."""

  source: StepSource
  rows: Sequence[Card]
  batch_size: int | None
  precision: str | None
  microbatches: MicrobatchConfig
  costs: str
  on_stage: Progress

  def estimate(self, traced: "TracedStep") -> StepEstimate:
    """Simulates the step on each card, then finds the fewest devices."""
    graphs = self._graphs(traced)
    self.on_stage("simulating")
    ones = [
      fits.on_one_device(graph, card)
      for graph, card in zip(graphs, self.rows, strict=True)
    ]
    smallest, variants, notes = self._smallest(graphs, ones, traced)
    roles = {node: spec.role for node, spec in traced.variables.items()}
    # The largest memory shows the step as it is, not as it must be.
    at = max(range(len(ones)), key=lambda i: ones[i].memory_bytes)
    weights = traced.weights
    learned = 0.0 if weights is None else weights.trainable_bytes
    return StepEstimate(
      precision=self.precision or self.source.precision(),
      num_ops=graphs[0].num_ops,
      weights=weights,
      gradient_bytes=learned if traced.training else 0.0,
      peak=peak_memory(
        ones[at].schedule, ones[at].device, self.rows[at].name, roles
      ),
      cards=tuple(
        _card_estimate(card, one, fits_of)
        for card, one, fits_of in zip(self.rows, ones, smallest, strict=True)
      ),
      variants=variants,
      notes=notes,
    )

  def _graphs(self, traced: "TracedStep") -> "list[OpGraph]":
    return cards.graphs_of(traced, self.rows, self.costs, self.on_stage)

  def _smallest(
    self,
    graphs: "Sequence[OpGraph]",
    ones: Sequence[fits.OneDevice],
    traced: "TracedStep",
  ) -> tuple[list[tuple[SmallestFit, ...]], tuple[str, ...], tuple[str, ...]]:
    """Returns per card the fits of each variant, the variants, and notes."""
    first = _WHOLE if self.microbatches.is_whole else _MICROBATCHES
    whole = self._fewest(graphs, ones, first, self.microbatches)
    found = {first: whole}
    notes: list[str] = []
    if self._tries_variants(ones, traced):
      for variant, configs in self._variants().items():
        found[variant] = list(whole)
        try:
          for config in configs:
            self._improve(found[variant], ones, config, variant)
        except ExtractionError as error:
          notes.append(f"the step has no variant with {variant}: {error}")
    rows = [
      tuple(
        dataclasses.replace(fit, variant=variant)
        for variant, of_cards in found.items()
        if (fit := of_cards[i]) is not None
      )
      for i in range(len(self.rows))
    ]
    return rows, tuple(found), tuple(notes)

  def _tries_variants(
    self, ones: Sequence[fits.OneDevice], traced: "TracedStep"
  ) -> bool:
    return (
      self.microbatches.is_whole
      and self.source.can_split
      and traced.training
      and not all(one.fits for one in ones)
    )

  def _variants(self) -> dict[str, list[MicrobatchConfig]]:
    """Returns the step variants to try, by name, in order."""
    change = functools.partial(dataclasses.replace, self.microbatches)
    most = math.inf if self.batch_size is None else self.batch_size
    return {
      _RECOMPUTED: [change(recompute=RecomputeConfig(everything=True))],
      _MICROBATCHES: [
        change(count=count, max_in_flight=1)
        for count in _MICROBATCH_COUNTS
        if count <= most
      ],
    }

  def _improve(
    self,
    best: list[SmallestFit | None],
    ones: Sequence[fits.OneDevice],
    config: MicrobatchConfig,
    variant: str,
  ) -> None:
    """Replaces fits, in place, by fits of a variant on fewer devices.

    Cards of most memory come first. One with less memory begins with the number
    of the one before it, as in `_fewest`. The variant is traced only if a card
    may hold it on fewer devices.
    """
    if not any(
      fit is None or fit.num_devices > one.least_devices
      for fit, one in zip(best, ones, strict=True)
    ):
      return
    graphs = self._graphs(
      self.source.trace(self.batch_size, config, self.precision, self.on_stage)
    )
    first = 1
    for i in _by_memory(self.rows):
      known = best[i]
      below = MAX_DEVICES + 1 if known is None else known.num_devices
      if first >= below:
        continue
      found = fits.smallest_fit(
        graphs[i],
        self.rows[i],
        fits.on_one_device(graphs[i], self.rows[i]),
        microbatches=config,
        variant=variant,
        first=first,
        below=below,
      )
      best[i] = found or known
      if found is not None:
        first = found.num_devices

  def _fewest(
    self,
    graphs: "Sequence[OpGraph]",
    ones: Sequence[fits.OneDevice],
    variant: str,
    config: MicrobatchConfig,
  ) -> list[SmallestFit | None]:
    """Returns the fewest devices of each card, cards of most memory first.

    A card with less memory begins with the number of the one before it.
    """
    found: list[SmallestFit | None] = [None] * len(ones)
    first = 1
    for i in _by_memory(self.rows):
      self.on_stage(f"devices of {self.rows[i].name}")
      fit = fits.smallest_fit(
        graphs[i],
        self.rows[i],
        ones[i],
        microbatches=config,
        variant=variant,
        first=1 if ones[i].fits else max(first, 2),
      )
      found[i] = fit
      first = MAX_DEVICES + 1 if fit is None else fit.num_devices
    return found


def _by_memory(rows: Sequence[Card]) -> list[int]:
  """Returns the indices of cards by the memory of a device, largest first."""
  memory = [
    max(d.memory_bytes for d in card.cluster.devices if d.kind in card.kinds())
    for card in rows
  ]
  return sorted(range(len(rows)), key=lambda i: (-memory[i], i))


def _card_estimate(
  card: Card, one: fits.OneDevice, smallest: tuple[SmallestFit, ...]
) -> CardEstimate:
  device = one.schedule.placement.problem.cluster.devices[one.device]
  hardware = device.extra.get("hardware")
  known = hardware if isinstance(hardware, Mapping) else {}
  return CardEstimate(
    name=card.name,
    model=str(known.get("model", "")),
    memory_bytes=one.memory_bytes,
    peak_memory_bytes=one.peak_memory_bytes,
    fits=one.fits,
    step_time_us=one.schedule.step_time_us,
    share_of_peak=one.share_of_peak,
    smallest=smallest,
  )
