"""One step of a model in one precision, estimated on every card."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfplace.core.estimate import CardEstimate, SmallestFit, StepEstimate
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.progress import Progress
from tfplace.core.recompute import RecomputeConfig
from tfplace.errors import ExtractionError
from tfplace.plan.estimate import cards, fits, microbatched
from tfplace.plan.estimate.cards import Card
from tfplace.plan.estimate.config import CONFIG
from tfplace.plan.estimate.peak import peak_memory
from tfplace.plan.estimate.steps import StepSource

if TYPE_CHECKING:
  from tfplace.core.op_graph import OpGraph
  from tfplace.extraction.traced import TracedStep

_WHOLE, _MICROBATCHES = "whole", "microbatches"
_RECOMPUTED = "recomputation"


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
      tried = {_RECOMPUTED: self._recompute, _MICROBATCHES: self._split}
      for variant, improve in tried.items():
        found[variant] = list(whole)
        try:
          improve(found[variant], ones, traced)
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

  def _left(
    self, best: Sequence[SmallestFit | None], ones: Sequence[fits.OneDevice]
  ) -> list[int]:
    """Returns the cards that a step variant may hold on fewer devices."""
    return [
      i
      for i in _by_memory(self.rows)
      if (fit := best[i]) is None or fit.num_devices > ones[i].least_devices
    ]

  def _recompute(
    self,
    best: list[SmallestFit | None],
    ones: Sequence[fits.OneDevice],
    traced: "TracedStep",
  ) -> None:
    """Improves fits, in place, by recomputation of all layers."""
    del traced  # The step that keeps activations.
    if self._left(best, ones):
      config = dataclasses.replace(
        self.microbatches, recompute=RecomputeConfig(everything=True)
      )
      self._improve(best, config, self._traced_graphs(config), _RECOMPUTED)

  def _split(
    self,
    best: list[SmallestFit | None],
    ones: Sequence[fits.OneDevice],
    traced: "TracedStep",
  ) -> None:
    """Improves fits, in place, by microbatches.

    The number that the card of least memory should need is traced, more only
    if it does not fit. Fewer microbatches of other cards are predicted.
    """
    counts = [
      count
      for count in CONFIG.microbatches
      if self.batch_size is None or count <= self.batch_size
    ]
    left = self._left(best, ones)
    if not counts or not left:
      return
    weights = traced.weights
    learned = 0.0 if weights is None else weights.trainable_bytes
    wanted = {
      i: microbatched.first_count(ones[i], learned, counts) for i in left
    }
    unsure: set[int] = set()
    for count in counts[counts.index(max(wanted.values())) :]:
      graphs = self._traced_graphs(self._config(count))
      fewer = counts[: counts.index(count)]
      for i in left:
        split = fits.on_one_device(graphs[i], self.rows[i])
        if split.fits:
          best[i], near = self._fewest_microbatches(
            whole=ones[i],
            split=split,
            count=count,
            fewer=fewer,
            gradient_bytes=learned,
          )
          unsure |= near
      left = self._left(best, ones)
      if not left:
        break
    else:
      self._improve(best, self._config(count), graphs, _MICROBATCHES)
    for count in sorted(unsure):
      self._check(best, count, self._traced_graphs(self._config(count)))

  def _fewest_microbatches(
    self,
    *,
    whole: fits.OneDevice,
    split: fits.OneDevice,
    count: int,
    fewer: Sequence[int],
    gradient_bytes: float,
  ) -> tuple[SmallestFit, set[int]]:
    """Returns the fit of one device, and the counts below that may fit, too."""
    near = set()
    found = microbatched.Predicted(
      count, split.schedule.step_time_us, split.peak_memory_bytes
    )
    for number in fewer:
      predicted = microbatched.between(
        whole,
        split,
        split_count=count,
        count=number,
        gradient_bytes=gradient_bytes,
      )
      over = predicted.peak_memory_bytes / whole.memory_bytes - 1
      if over <= 0:
        found = predicted
        break
      if over <= CONFIG.unsure_share:
        near.add(number)
    fit = SmallestFit(
      variant=_MICROBATCHES,
      num_devices=1,
      microbatches=found.count,
      max_in_flight=1,
      strategy="single",
      step_time_us=found.step_time_us,
      peak_memory_bytes=found.peak_memory_bytes,
    )
    return fit, near

  def _check(
    self,
    best: list[SmallestFit | None],
    count: int,
    graphs: "Sequence[OpGraph]",
  ) -> None:
    """Replaces fits of one device, in place, by those of fewer microbatches."""
    for i, card in enumerate(self.rows):
      known = best[i]
      if known is None or known.num_devices > 1 or known.microbatches <= count:
        continue
      one = fits.on_one_device(graphs[i], card)
      if one.fits:
        best[i] = dataclasses.replace(
          known,
          microbatches=count,
          step_time_us=one.schedule.step_time_us,
          peak_memory_bytes=one.peak_memory_bytes,
        )

  def _config(self, count: int) -> MicrobatchConfig:
    return dataclasses.replace(self.microbatches, count=count, max_in_flight=1)

  def _traced_graphs(self, config: MicrobatchConfig) -> "list[OpGraph]":
    traced = self.source.trace(
      self.batch_size, config, self.precision, self.on_stage
    )
    return self._graphs(traced)

  def _improve(
    self,
    best: list[SmallestFit | None],
    config: MicrobatchConfig,
    graphs: "Sequence[OpGraph]",
    variant: str,
  ) -> None:
    """Replaces fits, in place, by fits on fewer devices.

    Cards of most memory come first. One with less memory begins with the number
    of the one before it, as in `_fewest`.
    """
    first = 1
    for i in _by_memory(self.rows):
      known = best[i]
      below = CONFIG.max_devices + 1 if known is None else known.num_devices
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
      first = CONFIG.max_devices + 1 if fit is None else fit.num_devices
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
