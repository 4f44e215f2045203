"""Tables of an estimate for a terminal."""

import math
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from tfplace.core import estimate as core
from tfplace.core.estimate import (
  CardEstimate,
  Estimate,
  SmallestFit,
  StepEstimate,
)
from tfplace.core.units import format_bytes, format_share, format_us

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


def estimate_tables(estimate: Estimate) -> Iterator[Table | Text]:
  """Yields the tables and sentences of an estimate, in reading order."""
  kind = "training" if estimate.training else "inference"
  batch = f" of {estimate.batch_size} examples" if estimate.batch_size else ""
  yield Text(f"{estimate.model}: {kind} step{batch}")
  for note in estimate.notes:
    yield Text(_sentence(note))
  yield _sizes(estimate)
  for step in estimate.steps:
    yield _layers(step)
    yield _cards(step)
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
  """Returns a row per precision: sizes of variables, and the peak by part."""
  table = Table(title="Sizes, and memory on one device at the peak")
  table.add_column("")
  for step in estimate.steps:
    table.add_column(Text(step.precision or "as traced"), justify="right")

  def row(name: str, cells: list[str], style: str = "") -> None:
    table.add_row(Text(name), *map(Text, cells), style=style)

  steps = estimate.steps
  if any(step.weights is not None for step in steps):
    weights = [step.weights or core.WeightSizes() for step in steps]
    row(
      "trainable parameters",
      [_counted(w.trainable_count, w.trainable_bytes) for w in weights],
    )
    row(
      "non-trainable parameters",
      [_counted(w.non_trainable_count, w.non_trainable_bytes) for w in weights],
    )
    row("gradients of all", [format_bytes(s.gradient_bytes) for s in steps])
    row(
      "optimizer",
      [_counted(w.optimizer_count, w.optimizer_bytes) for w in weights],
    )
  table.add_section()
  for part in core.PARTS:
    cells = [step.peak.parts.get(part, 0.0) for step in steps]
    if any(cells):
      row(f"at the peak: {_NAMES[part]}", list(map(format_bytes, cells)))
  peaks = [format_bytes(step.peak.num_bytes) for step in steps]
  row("peak", peaks, style="bold")
  return table


def _counted(count: int, num_bytes: float) -> str:
  return f"{count:,} ({format_bytes(num_bytes)})"


def _layers(step: StepEstimate) -> Table:
  precision = f", {step.precision}" if step.precision else ""
  table = Table(
    title=f"Layers with the most activations at the peak{precision}"
  )
  table.add_column("layer")
  for name in ("bytes", "share of peak"):
    table.add_column(name, justify="right")
  for layer in step.peak.layers:
    share = format_share(layer.num_bytes, step.peak.num_bytes)
    cells = (layer.name, format_bytes(layer.num_bytes), share)
    table.add_row(*map(Text, cells))
  return table


def _cards(step: StepEstimate) -> Table:
  """Returns a row per card: one device, and the fewest that hold the step."""
  precision = f", {step.precision}" if step.precision else ""
  table = Table(
    title=f"One device, and the fewest that hold the step{precision}"
  )
  table.add_column("device")
  for name in ("memory", "peak", "fits", "step time", "MFU", *step.variants):
    table.add_column(name, justify="right")
  for card in step.cards:
    share = card.share_of_peak
    limit = card.memory_bytes
    cells = [
      card.name,
      "unlimited" if math.isinf(limit) else format_bytes(limit),
      format_bytes(card.peak_memory_bytes),
      "yes" if card.fits else "no",
      format_us(card.step_time_us),
      "-" if share is None else format_share(share, 1),
      *(_fewest(card, variant) for variant in step.variants),
    ]
    table.add_row(*map(Text, cells), style="" if card.fits else "dim")
  return table


def _fewest(card: CardEstimate, variant: str) -> str:
  """Formats a smallest fit: "1", or "2 (4 microbatches)"; "-" without one."""
  found: SmallestFit | None = card.smallest_of(variant)
  if found is None:
    return "-"
  if found.microbatches == 1:
    return str(found.num_devices)
  return f"{found.num_devices} ({found.microbatches} microbatches)"
