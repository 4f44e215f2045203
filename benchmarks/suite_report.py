"""The suite's results as Markdown and a picture."""

import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence

import published
from matplotlib.figure import Figure

BASELINES = ("single", "cpu", "auto")  # no competitors of `auto`
RATIOS = ("expert / auto", "auto / best competitor", "auto / bound")
SUMMARY_HEADS = (
  *("model (GPUs)", "ops", "single", "expert", "METIS", "best competitor"),
  *("auto", *RATIOS, "published human / method"),
)


def shown(result: dict) -> str:
  """A result in a cell: milliseconds, or what went wrong."""
  if "step_time_us" in result:
    return f"{result['step_time_us'] / 1e3:.1f}"
  return "OOM" if "oom" in result else "-"


def medians(results: dict, case: str) -> dict[str, dict]:
  """Strategy -> its result, with the median step time over the seeds."""
  by_strategy: dict[str, list[dict]] = {}
  for key, result in results["results"].items():
    label, cluster, strategy, _ = key.rsplit("/", 3)
    if f"{label}/{cluster}" == case:
      by_strategy.setdefault(strategy, []).append(result)
  found = {}
  for strategy, rows in by_strategy.items():
    rows.sort(key=lambda row: row.get("step_time_us", math.inf))
    found[strategy] = rows[len(rows) // 2]
    if all("step_time_us" in row for row in rows):
      median = statistics.median(row["step_time_us"] for row in rows)
      found[strategy] = {**found[strategy], "step_time_us": median}
  return found


def ratios(found: dict[str, dict], bound_us: float) -> dict[str, float]:
  """`auto` against the expert, the best competitor and the bound."""
  times = {
    s: r["step_time_us"] for s, r in found.items() if "step_time_us" in r
  }
  if "auto" not in times:
    return {}
  auto_us = times["auto"]
  rivals = _rivals(found)
  result = {"auto / bound": auto_us / bound_us}
  if rivals:
    result["auto / best competitor"] = auto_us / min(rivals.values())
  if "expert" in times:
    result["expert / auto"] = times["expert"] / auto_us
  return result


def _rivals(found: dict[str, dict]) -> dict[str, float]:
  """Strategy -> step time of the competitors that found a placement."""
  return {
    s: r["step_time_us"]
    for s, r in found.items()
    if s not in BASELINES and "step_time_us" in r
  }


def geometric_mean(values: Iterable[float]) -> float:
  """NaN without values."""
  logs = [math.log(value) for value in values]
  return math.exp(statistics.fmean(logs)) if logs else math.nan


def write(results: dict, out: pathlib.Path) -> None:
  """Writes `out` as .md and .png."""
  text = "\n\n".join(_table(results, gpu) for gpu in _gpus(results))
  out.with_suffix(".md").write_text(text + "\n", encoding="utf-8")
  print(text)
  _picture(results).savefig(out.with_suffix(".png"), dpi=100)


def _gpus(results: dict) -> list[str]:
  names = [case.rsplit("/", 1)[1].split("x")[0] for case in results["graphs"]]
  return list(dict.fromkeys(names))


def _cases(results: dict, gpu: str) -> list[tuple[published.Row, str]]:
  """The rows that were run on a GPU, with their keys, in published order."""
  return [
    (row, case)
    for row in published.ROWS
    if (case := f"{row.label}/{row.cluster(gpu)}") in results["graphs"]
  ]


def _table(results: dict, gpu: str) -> str:
  """The summary of one GPU's rows, then every placer's step time."""
  cases = _cases(results, gpu)
  found = {case: medians(results, case) for _, case in cases}
  rated = {
    case: ratios(found[case], results["graphs"][case]["lower_bound_us"])
    for _, case in cases
  }
  strategies = list(dict.fromkeys(s for rows in found.values() for s in rows))
  summary, everything, effort = [], [], []
  for row, case in cases:
    label = f"{row.label} ({row.devices})"
    ops = f"{results['graphs'][case]['ops']:,}"
    summary.append([label, ops, *_summary_cells(found[case], rated[case], row)])
    everything.append(
      [label, *(shown(found[case].get(s, {})) for s in strategies)]
    )
    effort.append(
      [label, *(_effort(found[case].get(s, {})) for s in strategies)]
    )
  means = (
    geometric_mean(r[name] for r in rated.values() if name in r)
    for name in RATIOS
  )
  published_means = (
    r for row, _ in cases if (r := _published_ratio(row)) is not None
  )
  summary.append(
    [
      *("*geometric mean*", "", "", "", "", "", ""),
      *(_number(mean) for mean in means),
      _number(geometric_mean(published_means)),
    ]
  )
  budget = f"searches of {results['budget_s']:g} s"
  return "\n\n".join(
    [
      f"**{gpu}**: simulated ms per step, {budget}",
      _markdown(SUMMARY_HEADS, summary),
      f"**{gpu}**, every placer: simulated ms per step, {budget}",
      _markdown(("model", *strategies), everything),
      f"**{gpu}**, seconds (evaluations) until the best was found, {budget}",
      _markdown(("model", *strategies), effort),
    ]
  )


def _effort(result: dict) -> str:
  """How long it took to find a result."""
  if "step_time_us" not in result:
    return shown(result)
  seconds = result["seconds_to_best"]
  return f"{seconds:.1f} ({result['evaluations_to_best']:,})"


def _summary_cells(
  found: dict[str, dict], rated: dict[str, float], row: published.Row
) -> list[str]:
  rivals = _rivals(found)
  best = min(rivals, key=lambda s: rivals[s]) if rivals else ""
  return [
    *(shown(found.get(s, {})) for s in ("single", "expert", "metis")),
    f"{shown(found[best])} {best}" if best else "-",
    shown(found.get("auto", {})),
    *(_number(rated.get(name)) for name in RATIOS),
    _number(_published_ratio(row)),
  ]


def _markdown(heads: Sequence[str], rows: list[list[str]]) -> str:
  lines = [heads, ["---"] * len(heads), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
  return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _published_ratio(row: published.Row) -> float | None:
  """The published human expert's time over the paper's own method's."""
  own = row.published.get("GO", row.published.get("Placeto"))
  human = row.published.get("human", row.published.get("expert"))
  both = isinstance(own, float) and isinstance(human, float)
  return human / own if both else None


def _picture(results: dict) -> Figure:
  """Per GPU, each placer's step time over that of `auto`, row by row."""
  gpus = _gpus(results)
  figure = Figure(figsize=(9, 4 * max(1, len(gpus))), layout="constrained")
  panels = figure.subplots(max(1, len(gpus)), 1, squeeze=False)[:, 0]
  for panel, gpu in zip(panels, gpus, strict=False):
    cases = _cases(results, gpu)
    found = [medians(results, case) for _, case in cases]
    for strategy in dict.fromkeys(s for rows in found for s in rows):
      points = [
        (i, rows[strategy]["step_time_us"] / rows["auto"]["step_time_us"])
        for i, rows in enumerate(found)
        if "step_time_us" in rows.get(strategy, {})
        and "step_time_us" in rows.get("auto", {})
      ]
      if points and strategy != "cpu":
        panel.plot(*zip(*points, strict=True), "o", label=strategy, alpha=0.7)
    panel.axhline(1, color="black", linewidth=1)
    panel.set_yscale("log")
    panel.set_ylabel("step time / that of auto")
    panel.set_title(gpu)
    labels = [f"{row.label} ({row.devices})" for row, _ in cases]
    panel.set_xticks(range(len(cases)), labels, rotation=30, ha="right")
    panel.legend(fontsize=7, ncols=4)
  return figure
