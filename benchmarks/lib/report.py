"""Markdown tables, means, and the files of a report."""

import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
  """A table in Markdown."""
  every = [heads, ["---"] * len(heads), *lines]
  return "\n".join(f"| {' | '.join(line)} |" for line in every)


def geometric_mean(values: Iterable[float]) -> float:
  """Geometric mean of positive values; NaN without values."""
  logs = [math.log(value) for value in values]
  return math.exp(statistics.fmean(logs)) if logs else math.nan


def known(step_us: float) -> float | None:
  """None for an infinite time: JSON has no infinity."""
  return float(step_us) if math.isfinite(step_us) else None


def write(out: str | pathlib.Path, text: str) -> None:
  """Prints a report, and writes it as Markdown beside its JSON file."""
  path = pathlib.Path(out).with_suffix(".md")
  path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
  print(text)
