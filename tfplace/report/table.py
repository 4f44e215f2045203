"""Tables of text, and the one that compares the results of placers."""

from collections.abc import Sequence
from typing import NamedTuple

import rich.table
from rich.text import Text

from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.units import format_bytes, format_us
from tfplace.report.names import named_devices, short_names

MAX_DEVICE_COLUMNS = 6  # with more devices, only the fullest is shown
BASELINE = "single"


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
    table = rich.table.Table(title=Text(self.title) if self.title else None)
    table.title_justify = "left"
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
  devices = list(results[0].evaluation.peak_memory_bytes) if results else []
  columns = ["placer", "step time", "vs single", "vs bound"]
  columns += [*_memory_columns(results), "seconds"]
  if single is None:
    single = next((r for r in results if r.strategy == BASELINE), None)
  single_us = None if single is None else single.evaluation.step_time_us
  rows = [_cells(result, single_us, devices) for result in results]
  if measured is not None:
    columns.insert(2, "measured")
    for row, evaluation in zip(rows, measured, strict=True):
      row.insert(2, format_us(evaluation.step_time_us))
  marked = best or min(results, key=rank, default=None)
  bold = next((i for i, r in enumerate(results) if r is marked), None)
  return Table("", columns, rows, bold)


def rank(result: Result) -> tuple[bool, float]:
  """Returns a sort key: feasible results first, then by step time."""
  return not result.evaluation.feasible, result.evaluation.step_time_us


def _memory_columns(results: Sequence[Result]) -> list[str]:
  if not results:
    return []
  devices = list(results[0].evaluation.peak_memory_bytes)
  if len(devices) > MAX_DEVICE_COLUMNS:
    return ["peak memory (fullest)"]
  cluster = results[0].placement.problem.cluster
  own = dict(zip(cluster.index, named_devices(cluster), strict=True))
  if any(name not in own for name in devices):
    return [f"peak {name}" for name in short_names(devices)]
  return [f"peak {own[name]}" for name in devices]


def _cells(
  result: Result, single_us: float | None, devices: Sequence[str]
) -> list[str]:
  evaluation = result.evaluation
  step, ratio = evaluation.step_time_us, evaluation.ratio_to_bound
  peaks = [evaluation.peak_memory_bytes[name] for name in devices]
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
