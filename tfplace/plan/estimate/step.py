"""One step of a model in one precision, estimated on every card."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tfplace.errors import ExtractionError
from tfplace.graph.estimate import CardEstimate, SmallestFit, StepEstimate
from tfplace.graph.microbatches import VariantConfig, microbatches_of
from tfplace.graph.recompute import RecomputeConfig
from tfplace.plan.estimate import fits
from tfplace.plan.estimate.cards import Card, GivenStep, Traces
from tfplace.plan.estimate.peak import peak_memory

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep

# Tried, ascending and one in flight, where one device does not hold the step.
_MICROBATCH_COUNTS = (2, 4, 8)
Fits: TypeAlias = list[SmallestFit | None]  # The smallest of each card.


def estimate_step(
  traces: Traces, rows: Sequence[Card]
) -> "tuple[TracedStep | GivenStep, StepEstimate]":
  """Simulates a step on each card, then finds the fewest devices.

  If the requested step is whole, other variants are tried where it does not
  fit.
  """
  traced = traces.trace(traces.config.variant)
  ones = _simulated(traces, traced, rows)
  fewest, notes = _fewest_by_variant(traces, traced, rows, ones)
  # The largest memory shows the step as it is, not as it must be.
  at = max(range(len(ones)), key=lambda i: ones[i].memory_bytes)
  roles = {node: spec.role for node, spec in traced.variables.items()}
  weights = traced.weights
  learned = 0.0 if weights is None else weights.trainable_bytes
  return traced, StepEstimate(
    precision=traces.precision or traces.source.precision,
    num_ops=ones[0].graph.num_ops,
    weights=weights,
    gradient_bytes=learned if traced.training else 0.0,
    peak=peak_memory(ones[at].schedule, ones[at].device, rows[at].name, roles),
    cards=tuple(
      _card_estimate(
        card,
        one,
        [
          dataclasses.replace(fit, variant=variant)
          for variant, of_cards in fewest.items()
          if (fit := of_cards[i]) is not None
        ],
      )
      for i, (card, one) in enumerate(zip(rows, ones, strict=True))
    ),
    variants=tuple(fewest),
    notes=tuple(notes),
  )


def _simulated(
  traces: Traces, traced: "TracedStep | GivenStep", rows: Sequence[Card]
) -> list[fits.OneDevice]:
  """Simulates a step on one device of each card."""
  graphs = traces.graphs(traced, rows)
  traces.on_stage("simulating")
  pairs = zip(graphs, rows, strict=True)
  return [fits.on_one_device(graph, card) for graph, card in pairs]


def _fewest_by_variant(
  traces: Traces,
  traced: "TracedStep | GivenStep",
  rows: Sequence[Card],
  ones: Sequence[fits.OneDevice],
) -> tuple[dict[str, Fits], list[str]]:
  """Finds the fewest devices that hold each step variant.

  Returns:
    The fits by name of the variant, and notes on variants that do not exist.
  """
  asked = traces.config.variant
  if isinstance(traced, GivenStep):
    asked = microbatches_of(traced.graph.traced_names)
  traces.on_stage("finding the fewest devices")
  first = _fewest(rows, ones, asked, [None] * len(rows))
  fewest = {"whole" if asked.is_whole else "microbatches": first}
  notes: list[str] = []
  has_variants = traces.source.takes_microbatches and traced.training
  if not (asked.is_whole and has_variants) or all(one.fits for one in ones):
    return fewest, notes
  most = traced.batch_size or math.inf
  for name, variants in _variants(asked, most).items():
    fewest[name] = first
    try:
      for variant in variants:
        if _may_improve(fewest[name], ones):
          divided = _simulated(traces, traces.trace(variant), rows)
          fewest[name] = _fewest(rows, divided, variant, fewest[name])
    except ExtractionError as error:
      notes.append(f"the step has no variant with {name}: {error}")
  return fewest, notes


def _variants(
  config: VariantConfig, most: float
) -> dict[str, list[VariantConfig]]:
  """Returns the step variants to try, by name, in order."""
  everything = RecomputeConfig(everything=True)
  return {
    "recomputation": [dataclasses.replace(config, recompute=everything)],
    "microbatches": [
      config.with_count(count, 1)
      for count in _MICROBATCH_COUNTS
      if count <= most
    ],
  }


def _may_improve(known: Fits, ones: Sequence[fits.OneDevice]) -> bool:
  """Returns whether a card may hold a variant on fewer devices."""
  return any(
    fit is None or fit.num_devices > one.least_devices
    for fit, one in zip(known, ones, strict=True)
  )


def _fewest(
  rows: Sequence[Card],
  ones: Sequence[fits.OneDevice],
  config: VariantConfig,
  known: Fits,
) -> Fits:
  """Returns the fewest devices of each card, or known fits on no more.

  Cards of most memory come first. One with less memory begins with the number
  of the one before it.
  """
  result, first = list(known), 1
  for i in _by_memory(rows):
    fit = result[i]
    most = ones[i].num_devices if fit is None else fit.num_devices - 1
    least = 1 if ones[i].fits else first
    smallest = fits.smallest_fit(
      rows[i], ones[i], config, first=least, most=most
    )
    if smallest is not None:
      result[i], first = smallest, smallest.num_devices
    elif fit is None:
      first = max(first, most + 1)
  return result


def _by_memory(rows: Sequence[Card]) -> list[int]:
  """Returns the indices of cards by the memory of a device, largest first."""
  memory = [
    max(d.memory_bytes for d in card.cluster.devices if d.kind in card.kinds())
    for card in rows
  ]
  return sorted(range(len(rows)), key=lambda i: (-memory[i], i))


def _card_estimate(
  card: Card, one: fits.OneDevice, smallest: Sequence[SmallestFit]
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
    smallest=tuple(smallest),
  )
