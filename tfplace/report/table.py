"""Tables of text, and the one that compares the results of placers."""

import html
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import rich.table
from rich.text import Text

from tfplace.graph import estimate as parts
from tfplace.graph.estimate import (
  MAX_BATCH,
  CardEstimate,
  Estimate,
  SmallestFit,
  StepEstimate,
)
from tfplace.graph.evaluation import Evaluation, Result
from tfplace.graph.order import RANK
from tfplace.graph.placement import Placement
from tfplace.graph.quantities import format_bytes, format_share, format_us
from tfplace.plan.variants import VariantChoice, VariantTrial
from tfplace.report.rows import named_devices, shorten

MAX_DEVICE_COLUMNS = 6  # with more devices, only the fullest is shown
BASELINE = "single"
_MAX_ROWS = 32  # of a table in HTML
_MAX_TEXT = 160  # characters of a cell


class Table(NamedTuple):
  """A table of text, for a terminal or a page.

  Attributes:
    title: its title, or "".
    columns: [num_columns] headers.
    rows: [num_rows][num_columns] cells.
    bold: index of a marked row, if any.
  """

  title: str
  columns: Sequence[str]
  rows: Sequence[Sequence[str]]
  bold: int | None = None

  def to_rich(self) -> rich.table.Table:
    """Returns the table for Rich; only the first column is to the left."""
    title = Text(self.title) if self.title else None
    table = rich.table.Table(title=title, title_justify="left")
    for i, name in enumerate(self.columns):
      table.add_column(Text(name), justify="right" if i else "left")
    for i, row in enumerate(self.rows):
      table.add_row(*map(Text, row), style="bold" if i == self.bold else "")
    return table


def results_table(
  results: Sequence[Result],
  *,
  best: Result | None = None,
  measured: Sequence[Evaluation] | None = None,
  single: Result | None = None,
) -> Table:
  """Builds a table with one row per result.

  "vs single" is the speedup over the strategy `single` (above 1 is faster). "vs
  bound" is the step time divided by the lower bound (1 is optimal). The best
  row is bold.

  Args:
    best: result to mark; by default the fastest that fits in memory.
    measured: measured evaluation of each result's placement.
    single: reference of "vs single"; by default `single` of the results.
  """
  columns = ["placer", "step time", "vs single", "vs bound"]
  columns += [*_memory_columns(results[0].placement), "seconds"]
  if single is None:
    single = next((r for r in results if r.strategy == BASELINE), None)
  single_us = None if single is None else single.evaluation.step_time_us
  rows = [_cells(result, single_us) for result in results]
  if measured is not None:
    columns.insert(2, "measured")
    for row, evaluation in zip(rows, measured, strict=True):
      row.insert(2, format_us(evaluation.step_time_us))
  marked = best or min(results, key=rank)
  bold = next((i for i, r in enumerate(results) if r is marked), None)
  return Table("", columns, rows, bold)


def rank(result: Result) -> tuple[bool, float]:
  """Returns a sort key: feasible results first, then by step time."""
  return not result.evaluation.feasible, result.evaluation.step_time_us


def _memory_columns(placement: Placement) -> list[str]:
  names = named_devices(placement.problem.cluster)
  if len(names) > MAX_DEVICE_COLUMNS:
    return ["peak memory (fullest)"]
  return [f"peak {name}" for name in names]


def _cells(result: Result, single_us: float | None) -> list[str]:
  evaluation = result.evaluation
  step, ratio = evaluation.step_time_us, evaluation.ratio_to_bound
  peaks = [*evaluation.peak_memory_bytes.values()]
  if len(peaks) > MAX_DEVICE_COLUMNS:
    peaks = [max(peaks)]
  oom = "" if evaluation.feasible else " (out of memory)"
  return [
    result.strategy,
    format_us(step) + oom,
    f"{single_us / step:.3f}x" if single_us is not None and step > 0 else "-",
    "-" if ratio is None else f"{ratio:.3f}",
    *map(format_bytes, peaks),
    f"{result.seconds:.2f}",
  ]


def choice_table(choice: VariantChoice, single: Result | None) -> Table:
  """Builds a table of step variants, with the chosen one in bold.

  Args:
    choice: the variants and their best placements.
    single: whole step on one device, or None if no device has the memory.
  """
  rows = [_trial_cells(trial, single) for trial in choice.trials]
  names = list(rows[0])
  if all(row["activations"] == "kept" for row in rows):
    names.remove("activations")
  if all(row["order of ops"] != RANK for row in rows):
    names.remove("order of ops")
  cells = [[row[name] for name in names] for row in rows]
  variants = [trial.variant for trial in choice.trials]
  return Table("", names, cells, variants.index(choice.variant))


def _trial_cells(trial: VariantTrial, single: Result | None) -> dict[str, str]:
  variant, count = trial.variant, str(trial.variant.count)
  if variant.sizes is not None:
    count += f" ({', '.join(map(str, variant.sizes))})"
  time, ratio, memory = trial.why, "-", "-"
  if trial.best is not None:
    is_measured = trial.measured_us is not None
    time = format_us(trial.step_time_us) + " (measured)" * is_measured
    peaks = trial.best.evaluation.peak_memory_bytes
    memory = format_bytes(max(peaks.values()))
    if single is not None:
      single_us = single.evaluation.step_time_us
      ratio = f"{single_us / trial.step_time_us:.3f}x"
  return {
    "microbatches": "1 (whole)" if variant.is_whole else count,
    "activations": "kept" if variant.recompute.is_none else "recomputed",
    "in flight": str(variant.max_in_flight or "all"),
    "step time": time,
    "vs one device": ratio,
    "peak memory (fullest)": memory,
    "search s": f"{trial.seconds:.2f}",
    "order of ops": trial.order,
  }


def html_table(table: Table) -> str:
  """Returns a table of at most 32 rows, without its title."""
  shown = [*table.rows[:_MAX_ROWS]]
  if len(table.rows) > len(shown):
    rest = f"{len(table.rows) - len(shown):,} more"
    shown.append((rest, *[""] * (len(table.columns) - 1)))
  style, best = ' style="text-align:left"', ' class="best"'
  head = "".join(f"<th{style}>{escaped(name)}</th>" for name in table.columns)
  body = "".join(
    f"<tr{best * (i == table.bold)}>"
    f"{''.join(f'<td{style}>{escaped(cell)}</td>' for cell in row)}</tr>"
    for i, row in enumerate(shown)
  )
  return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def escaped(text: str, limit: int = _MAX_TEXT) -> str:
  """Escapes a text for HTML and XML, without control characters."""
  kept = "".join(c if c.isprintable() else " " for c in shorten(text, limit))
  return html.escape(kept)


_NAMES = {
  parts.TRAINABLE: "trainable weights",
  parts.NON_TRAINABLE: "other weights",
  parts.OPTIMIZER: "optimizer",
  parts.OTHER: "other variables",
  parts.READS: "copies of read variables",
  parts.ACTIVATIONS: "activations",
  parts.GRADIENTS: "gradients",
  parts.TEMPORARY: "temporary",
}


def estimate_tables(estimate: Estimate) -> Iterator[rich.table.Table | Text]:
  """Yields the tables and sentences of an estimate, in reading order."""
  kind = "training" if estimate.training else "inference"
  examples = estimate.batch_size
  plural = "s" * (examples != 1)
  batch = f" of {examples} example{plural}" if examples else ""
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
    largest = estimate.largest_batch
    size = f"{largest.batch_size:,}"
    if largest.batch_size >= MAX_BATCH:
      size = f"at least {size}"
    yield Text(
      f"The largest batch on {largest.cluster} is {size}:"
      f" {format_us(largest.step_time_us)} a step, {largest.strategy},"
      f" {format_bytes(largest.peak_memory_bytes)} on the fullest device."
    )


def _sentence(note: str) -> str:
  return f"{note[0].upper()}{note[1:]}."


def _sizes(estimate: Estimate) -> Table:
  """Returns a row per kind of variable, and per part of the peak."""
  steps, rows = estimate.steps, []
  if any(step.weights is not None for step in steps):
    sizes = [step.weights or parts.WeightSizes() for step in steps]
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
  for part in parts.PARTS:
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
  peak = step.peak.num_bytes
  rows = [
    (x.name, format_bytes(x.num_bytes), format_share(x.num_bytes, peak))
    for x in step.peak.layers
  ]
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
