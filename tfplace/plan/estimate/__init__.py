"""Estimates: memory, step time and the devices a step needs, without a search.

One trace serves all cards. A further step variant, such as microbatches, is
another traced graph; `_Step._smallest` lists them.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfplace.core.argument_checks import check_count
from tfplace.core.estimate import (
  CardEstimate,
  Estimate,
  LargestBatch,
  SmallestFit,
  StepEstimate,
)
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.core.placement import Placement
from tfplace.core.progress import Progress, silent
from tfplace.core.recompute import NONE, RecomputeConfig, recompute_config
from tfplace.errors import ExtractionError, TfplaceError, shown
from tfplace.plan import sources
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.estimate import cards, fits
from tfplace.plan.estimate.batch import find_largest_batch
from tfplace.plan.estimate.cards import Card
from tfplace.plan.estimate.config import CONFIG
from tfplace.plan.estimate.peak import peak_memory
from tfplace.plan.estimate.precision import PRECISIONS
from tfplace.plan.estimate.steps import StepSource, open_steps

if TYPE_CHECKING:
  import keras

  from tfplace.core.op_graph import OpGraph
  from tfplace.extraction.traced import TracedStep

_WHOLE, _MICROBATCHES = "whole", "microbatches"
_RECOMPUTED = "recomputation"


def estimate(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike | None = None,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  precisions: Sequence[str] | None = None,
  costs: str = sources.DEFAULT_COSTS,
  allow_batch_statistics: bool = False,
) -> Estimate:
  """Estimates memory and step time of a model's step, without a search.

  Args:
    model: a Keras 3 model, the name of a zoo model, or the path of a Keras
      file (.keras), a GraphDef (.pb, .pbtxt) or a SavedModel directory. A
      Keras model that is not compiled is estimated for inference.
    cluster: cluster to estimate for: a `Cluster`, a preset or a file. None
      estimates every GPU of the presets.
    batch_size: examples per step. None selects the model's default.
    training: whether to estimate the training step or inference.
    sizes: additional sizes of a zoo model, such as {"length": 20}.
    sample: sample batch of a Keras model that does not define its inputs.
    precisions: names of dtype policies: "float32", "mixed_float16" or
      "mixed_bfloat16". The model is rebuilt in each. None is the model's own.
    costs: name of the cost model.
    allow_batch_statistics: whether BatchNormalization may use the statistics
      of a microbatch.

  Returns:
    The estimate: sizes in bytes, times in microseconds.

  Raises:
    ExtractionError: the model cannot be traced, or not rebuilt in a precision.
    FormatError: the preset is unknown, or the file is invalid.
    TfplaceError: another argument is invalid.
  """
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  sources.check_costs(costs)
  rows = cards_of(cluster)
  source = open_steps(model, training=training, sizes=sizes, sample=sample)
  microbatches = MicrobatchConfig(allow_batch_statistics=allow_batch_statistics)
  return estimate_steps(
    source,
    rows,
    batch_size=batch_size,
    precisions=precisions,
    microbatches=microbatches,
    costs=costs,
  )


def largest_batch(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  precision: str | None = None,
  microbatches: int | Sequence[int] = 1,
  recompute: str | Sequence[str | Sequence[str]] = NONE,
  costs: str = sources.DEFAULT_COSTS,
  allow_batch_statistics: bool = False,
) -> LargestBatch:
  """Finds the largest batch whose step fits on a cluster.

  The batch fits by simulation, and one more example does not: neither on one
  device nor by the cheap placers of `EstimateConfig.strategies` on all. A
  search (`tfplace.place`) may fit more.

  Args:
    model, training, sizes, sample, costs, allow_batch_statistics: see
      `estimate`.
    cluster: a `Cluster`, a preset or a file.
    batch_size: batch to begin with. None selects the model's default.
    precision: dtype policy; None is the model's own.
    microbatches: number of microbatches, one of them in flight.
    recompute: see `tfplace.extract`.

  Raises:
    InfeasibleError: not even the smallest batch fits.
    ExtractionError: the model cannot be traced.
    TfplaceError: an argument is invalid, or memory does not limit the batch.
  """
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  sources.check_costs(costs)
  card = cards.cluster_card(find_cluster(cluster))
  config = MicrobatchConfig.of(
    microbatches,
    1 if microbatches != 1 else None,
    allow_batch_statistics,
    recompute_config(recompute),
  )
  config.check()
  check_precisions([] if precision is None else [precision])
  source = open_steps(model, training=training, sizes=sizes, sample=sample)
  return find_largest_batch(
    source,
    card,
    batch_size=batch_size or _default_batch(source),
    precision=precision,
    microbatches=config,
    costs=costs,
  )


def _default_batch(source: StepSource) -> int:
  return source.trace(None, WHOLE, None, silent).batch_size or 1


def cards_of(cluster: ClusterLike | None) -> list[Card]:
  """Returns the rows of an estimate: of one cluster, or all presets for None.

  Raises:
    FormatError: the preset is unknown, or the file is invalid.
  """
  if cluster is None:
    return cards.preset_cards()
  return cards.cluster_cards(find_cluster(cluster))


def check_precisions(names: Sequence[str]) -> None:
  """Checks names of dtype policies.

  Raises:
    TfplaceError: a name is unknown. The message lists the choices.
  """
  if isinstance(names, str):
    raise TfplaceError(
      f"precisions is {shown(names)}; it must be a sequence of names"
    )
  for name in names:
    if name not in PRECISIONS:
      raise TfplaceError(
        f"unknown precision {shown(name)}; choose from {', '.join(PRECISIONS)}"
      )


def estimate_steps(
  source: StepSource,
  rows: Sequence[Card],
  *,
  batch_size: int | None = None,
  precisions: Sequence[str] | None = None,
  microbatches: MicrobatchConfig = WHOLE,
  costs: str = sources.DEFAULT_COSTS,
  on_stage: Progress = silent,
) -> Estimate:
  """Estimates an opened model on each card.

  Args:
    source: the model.
    rows: the cards.
    batch_size: examples per step; None is the model's own.
    precisions: dtype policies; None is the model's own.
    microbatches: microbatches of the step. If there is one, others are tried
      where the step does not fit.
    costs: name of the cost model.
    on_stage: called at the start of each stage.

  Raises:
    TfplaceError: a precision is unknown, or the step cannot be traced.
  """
  check_precisions(precisions or [])
  names: Sequence[str | None] = precisions or [None]
  found = []
  for name in names:
    traced = source.trace(batch_size, microbatches, name, on_stage)
    found.append(
      _Step(
        source,
        rows,
        batch_size or traced.batch_size or None,
        name,
        microbatches,
        costs,
        on_stage,
      ).estimate(traced)
    )
  return Estimate(
    model=traced.name,
    batch_size=batch_size or traced.batch_size,
    training=traced.training,
    steps=tuple(found),
    notes=source.notes,
  )


def one_device_placement(
  traced: "TracedStep", card: Card, costs: str = sources.DEFAULT_COSTS
) -> Placement:
  """Returns the placement that an estimate simulates on one device."""
  (graph,) = cards.graphs_of(traced, [card], costs)
  return fits.on_one_device(graph, card).schedule.placement


@dataclasses.dataclass(frozen=True)
class _Step:
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
      recomputed = dataclasses.replace(
        self.microbatches, recompute=RecomputeConfig(everything=True)
      )
      tried = {_RECOMPUTED: [recomputed], _MICROBATCHES: self._microbatched()}
      for variant, configs in tried.items():
        found[variant] = list(whole)
        try:
          self._try(found[variant], configs, variant)
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

  def _microbatched(self) -> Iterator[MicrobatchConfig]:
    for count in CONFIG.microbatches:
      if self.batch_size is None or count <= self.batch_size:
        yield dataclasses.replace(
          self.microbatches, count=count, max_in_flight=1
        )

  def _try(
    self,
    best: list[SmallestFit | None],
    configs: Iterable[MicrobatchConfig],
    variant: str,
  ) -> None:
    """Traces step variants until one device of each card holds the step."""
    for config in configs:
      if all(fit and fit.num_devices == 1 for fit in best):
        return
      traced = self.source.trace(
        self.batch_size, config, self.precision, self.on_stage
      )
      self._improve(best, config, self._graphs(traced), variant)

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


__all__ = [
  "CONFIG",
  "PRECISIONS",
  "Card",
  "StepSource",
  "cards_of",
  "check_precisions",
  "estimate",
  "estimate_steps",
  "find_largest_batch",
  "largest_batch",
  "one_device_placement",
  "open_steps",
]
