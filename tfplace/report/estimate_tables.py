"""Tables of an estimate for a terminal."""

import math
from collections.abc import Iterator

import rich.table
from rich.text import Text

from tfplace.core import estimate as core
from tfplace.core.estimate import (
  CardEstimate,
  Estimate,
  SmallestFit,
  StepEstimate,
)
from tfplace.core.units import format_bytes, format_share, format_us
from tfplace.report.table import Table

_NAMES = {
  core.TRAINABLE: "trainable weights",
  core.NON_TRAINABLE: "other weights",
  core.OPTIMIZER: "optimizer",
  core.OTHER: "other variables",
  core.READS: "copies of read variables",
  core.ACTIVATIONS: "activations",
  core.GRADIENTS: "gradients",
  core.TEMPORARY: "temporary",
}


def estimate_tables(estimate: Estimate) -> Iterator[rich.table.Table | Text]:
  """Yields the tables and sentences of an estimate, in reading order."""
  kind = "training" if estimate.training else "inference"
  batch = f" of {estimate.batch_size} examples" if estimate.batch_size else ""
  yield Text(f"{estimate.model}: {kind} step{batch}")
  for note in estimate.notes:
    yield Text(_sentence(note))
  yield _sizes(estimate).to_rich()
  for step in estimate.steps:
    yield _layers(step).to_rich()
    yield _cards(step).to_rich()
    for note in step.notes:
      yield Text(_sentence(note))
  if estimate.largest_batch is not None:
    found = estimate.largest_batch
    yield Text(
      f"The largest batch on {found.cluster} is {found.batch_size}:"
      f" {format_us(found.step_time_us)} a step, {found.strategy},"
      f" {format_bytes(found.peak_memory_bytes)} on the fullest device."
    )


def _sentence(note: str) -> str:
  return f"{note[0].upper()}{note[1:]}."


def _sizes(estimate: Estimate) -> Table:
  """Returns a row per kind of variable, and per part of the peak."""
  steps, rows = estimate.steps, []
  if any(step.weights is not None for step in steps):
    sizes = [step.weights or core.WeightSizes() for step in steps]
    trained = ((w.trainable_count, w.trainable_bytes) for w in sizes)
    others = ((w.non_trainable_count, w.non_trainable_bytes) for w in sizes)
    slots = ((w.optimizer_count, w.optimizer_bytes) for w in sizes)
    gradients = (format_bytes(step.gradient_bytes) for step in steps)
    rows = [
      ("trainable parameters", *(_counted(*x) for x in trained)),
      ("non-trainable parameters", *(_counted(*x) for x in others)),
      ("gradients of all", *gradients),
      ("optimizer", *(_counted(*x) for x in slots)),
    ]
  for part in core.PARTS:
    cells = [step.peak.parts.get(part, 0.0) for step in steps]
    if any(cells):
      rows.append((f"at the peak: {_NAMES[part]}", *map(format_bytes, cells)))
  rows.append(("peak", *(format_bytes(step.peak.num_bytes) for step in steps)))
  precisions = (step.precision or "as traced" for step in steps)
  title = "Sizes, and memory on one device at the peak"
  return Table(title, ("", *precisions), rows)


def _counted(count: int, num_bytes: float) -> str:
  return f"{count:,} ({format_bytes(num_bytes)})"


def _layers(step: StepEstimate) -> Table:
  rows = []
  for layer in step.peak.layers:
    share = format_share(layer.num_bytes, step.peak.num_bytes)
    rows.append((layer.name, format_bytes(layer.num_bytes), share))
  title = f"Layers with the most activations at the peak{_precision(step)}"
  return Table(title, ("layer", "bytes", "share of peak"), rows)


def _cards(step: StepEstimate) -> Table:
  """Returns a row per card: one device, and the fewest that hold the step."""
  rows = []
  for card in step.cards:
    share, limit = card.share_of_peak, card.memory_bytes
    cells = (
      card.name,
      "unlimited" if math.isinf(limit) else format_bytes(limit),
      format_bytes(card.peak_memory_bytes),
      "yes" if card.fits else "no",
      format_us(card.step_time_us),
      "-" if share is None else format_share(share, 1),
    )
    rows.append((*cells, *(_fewest(card, x) for x in step.variants)))
  columns = ("device", "memory", "peak", "fits", "step time", "MFU")
  title = f"One device, and the fewest that hold the step{_precision(step)}"
  return Table(title, (*columns, *step.variants), rows)


def _precision(step: StepEstimate) -> str:
  return f", {step.precision}" if step.precision else ""


def _fewest(card: CardEstimate, variant: str) -> str:
  """Formats a smallest fit: "1", or "2 (4 microbatches)"; "-" without one."""
  found: SmallestFit | None = card.smallest_of(variant)
  if found is None:
    return "-"
  if found.microbatches == 1:
    return str(found.num_devices)
  return f"{found.num_devices} ({found.microbatches} microbatches)"
