"""The table of `run_models.py`: milliseconds, and ratios to `auto`."""

import math
from collections.abc import Mapping

from benchmarks.lib import report

BY_HAND = ("data_parallel", "pipeline", "hybrid")
HEADS = (
  *("model", "cluster", "one device", "unsplit", "data parallel", "pipeline"),
  *("their product", "auto", "microbatches", "seconds", "evaluations"),
  *("unsplit / auto", "one device / auto", "best by hand / auto"),
)
RATIOS = HEADS[-3:]
Rows = Mapping[tuple[str, str], Mapping[str, dict]]


def ratios(row: Mapping[str, dict]) -> dict[str, float]:
  """Ratios of other placers' step times to that of `auto`, where there is one.

  Args:
    row: column -> its result.
  """
  auto_us = row["auto"].get("step_time_us")
  if auto_us is None:
    return {}
  by_hand = [row[name].get("step_time_us", math.inf) for name in BY_HAND]
  others = {
    "unsplit / auto": row["unsplit"].get("step_time_us", math.inf),
    "one device / auto": row["one device"].get("step_time_us", math.inf),
    "best by hand / auto": min(by_hand),
  }
  return {
    name: taken_us / auto_us
    for name, taken_us in others.items()
    if math.isfinite(taken_us)
  }


def markdown(rows: Rows, budget_s: float) -> str:
  """A line for each row, then geometric means of each cluster and of all.

  Args:
    rows: (model, cluster) -> column -> its result.
    budget_s: seconds of each search.
  """
  lines = [[*key, *_cells(row)] for key, row in rows.items()]
  clusters = list(dict.fromkeys(cluster for _, cluster in rows))
  for name in clusters:
    own = [row for (_, cluster), row in rows.items() if cluster == name]
    lines.append(_means(name, own))
  if len(clusters) > 1:
    lines.append(_means("all", list(rows.values())))
  return (
    f"Simulated ms per step (microbatches), searches of {budget_s:g} s; devices"
    " take ops as they become ready, or by rank where that is said.\n\n"
    + report.markdown(HEADS, lines)
    + f"\n\nLeast *best by hand / auto* of a row: {_number(_least(rows))}.\n"
  )


def _least(rows: Rows) -> float:
  found = [ratios(row).get(RATIOS[2], math.nan) for row in rows.values()]
  return min((r for r in found if not math.isnan(r)), default=math.nan)


def _cells(row: Mapping[str, dict]) -> list[str]:
  auto, rated = row["auto"], ratios(row)
  return [
    *(shown(row[name]) for name in ("one device", "unsplit")),
    *(shown(row[name], with_count=True) for name in BY_HAND),
    shown(auto),
    split(auto),
    f"{auto['seconds']:.0f}",
    f"{auto['evaluations']:,}",
    *(_number(rated.get(name, math.nan)) for name in RATIOS),
  ]


def shown(found: dict, with_count: bool = False) -> str:
  """Milliseconds, or what went wrong."""
  if "step_time_us" not in found:
    return "OOM" if "oom" in found else "-"
  text = f"{found['step_time_us'] / 1e3:.1f}"
  if with_count:
    by_rank = ", by rank" if found.get("order") == "rank" else ""
    text += f" ({found['microbatches']}{by_rank})"
  return text


def split(found: dict) -> str:
  """Microbatches; where fewer are under way at once, how many; the order."""
  if "microbatches" not in found:
    return "-"
  in_flight = found.get("max_in_flight")
  parts = [str(found["microbatches"])]
  if found.get("microbatch_sizes"):
    parts = [f"of {' + '.join(map(str, found['microbatch_sizes']))}"]
  if in_flight:
    parts.append(f"{in_flight} in flight")
  if found.get("order") == "rank":
    parts.append("by rank")
  return ", ".join(parts)


def _means(name: str, rows: list[Mapping[str, dict]]) -> list[str]:
  found = [ratios(row) for row in rows]
  means = [
    report.geometric_mean(rated[ratio] for rated in found if ratio in rated)
    for ratio in RATIOS
  ]
  blank = [""] * (len(HEADS) - 2 - len(RATIOS))
  return ["*geometric mean*", f"*{name}*", *blank, *map(_number, means)]


def _number(value: float) -> str:
  return "-" if math.isnan(value) else f"{value:.2f}"
