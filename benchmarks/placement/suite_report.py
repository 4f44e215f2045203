"""The suite's results as Markdown and a picture."""

import dataclasses
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.lib import published, report

BASELINES = ("single", "cpu", "auto")  # no competitors of `auto`
SEARCHES = ("annealing", "brkga", "auto")  # the others are one-shot
RATIOS = ("expert / auto", "auto / best competitor", "auto / bound")
SUMMARY_HEADS = (
  *("model (GPUs)", "ops", "single", "expert", "METIS", "best competitor"),
  *("auto", *RATIOS, "published human / method", "published, s per step"),
)
MARKERS, SLOWEST = "o^s", 5  # of the picture
GLANCE_HEADS = (
  *("model", "cluster", "expert", "best one-shot", "annealing", "auto"),
  *(*RATIOS, "published human / method"),
)


@dataclasses.dataclass(frozen=True)
class Case:
  """One row of the published tables on one cluster.

  Attributes:
    row: of the tables.
    cluster: name of the preset.
    ops: of the graph.
    found: strategy -> its result, the median over seeds.
    rated: name of a ratio -> its value.
  """

  row: published.Row
  cluster: str
  ops: int
  found: Mapping[str, dict]
  rated: Mapping[str, float]

  @property
  def label(self) -> str:
    return f"{self.row.label} ({self.row.devices})"


def shown(result: dict) -> str:
  """A result in a cell: milliseconds, or what went wrong."""
  if "step_time_us" in result:
    mark = "*" if result.get("is_earlier") else ""
    return f"{result['step_time_us'] / 1e3:.1f}{mark}"
  return "OOM" if "oom" in result else "-"


def medians(results: dict, case: str) -> dict[str, dict]:
  """Strategy -> its result, with the median step time over the seeds.

  `is_earlier` tells that it is a search's, of an earlier version than others.
  """
  by_strategy: dict[str, list[dict]] = {}
  for key, result in results["results"].items():
    label, cluster, strategy, _ = key.rsplit("/", 3)
    if f"{label}/{cluster}" == case:
      by_strategy.setdefault(strategy, []).append(result)
  newest = max(map(_version, results["results"].values()), default=1)
  found = {}
  for strategy, rows in by_strategy.items():
    rows.sort(key=lambda row: row.get("step_time_us", math.inf))
    earlier = min(map(_version, rows)) < newest and strategy in SEARCHES
    found[strategy] = {**rows[len(rows) // 2], "is_earlier": earlier}
    if all("step_time_us" in row for row in rows):
      found[strategy]["step_time_us"] = statistics.median(
        row["step_time_us"] for row in rows
      )
  return found


def _version(result: dict) -> int:
  return result.get("search_version", 1)


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


def write(results: dict, out: pathlib.Path) -> None:
  """Writes `out` as .md and .png."""
  by_gpu = {gpu: cases_of(results, gpu) for gpu in _gpus(results)}
  tables = [t for g, c in by_gpu.items() for t in _tables(g, c, results)]
  if len(by_gpu) > 1:
    tables += ["**All clusters at a glance**", glance(by_gpu)]
  if len({_version(r) for r in results["results"].values()}) > 1:
    tables.append("\\* by an earlier version of the search")
  text = "\n\n".join(tables)
  report.write(out, text)
  _picture(by_gpu).savefig(out.with_suffix(".png"), dpi=100)


def _gpus(results: dict) -> list[str]:
  names = [case.rsplit("/", 1)[1].split("x")[0] for case in results["graphs"]]
  return list(dict.fromkeys(names))


def cases_of(results: dict, gpu: str) -> list[Case]:
  """The rows that were run on a GPU, in published order."""
  cases = []
  for row in published.ROWS:
    cluster = row.cluster(gpu)
    about = results["graphs"].get(f"{row.label}/{cluster}")
    if about is not None:
      found = medians(results, f"{row.label}/{cluster}")
      rated = ratios(found, about["lower_bound_us"])
      cases.append(Case(row, cluster, about["ops"], found, rated))
  return cases


def _tables(gpu: str, cases: list[Case], results: dict) -> list[str]:
  """The summary of one GPU's rows, then every placer's step time and effort."""
  budget = f"searches of {results['budget_s']:g} s"
  return [
    f"**{gpu}**: simulated ms per step, {budget}",
    summary(cases),
    f"**{gpu}**, every placer: simulated ms per step, {budget}",
    _everyone(cases, shown),
    f"**{gpu}**, seconds (evaluations) until the best was found, {budget}",
    _everyone(cases, _effort),
  ]


def summary(cases: list[Case]) -> str:
  """A line per row, beside the published figures, and geometric means."""
  lines = [[case.label, f"{case.ops:,}", *_cells(case)] for case in cases]
  lines.append(["*geometric mean*", *[""] * 6, *_means(cases), ""])
  return report.markdown(SUMMARY_HEADS, lines)


def _cells(case: Case) -> list[str]:
  rivals = _rivals(case.found)
  best = min(rivals, key=lambda s: rivals[s]) if rivals else ""
  return [
    _one_gpu(case.found),
    *(shown(case.found.get(s, {})) for s in ("expert", "metis")),
    f"{shown(case.found[best])} {best}" if best else "-",
    shown(case.found.get("auto", {})),
    *(_number(case.rated.get(name)) for name in RATIOS),
    _number(_published_ratio(case.row)),
    ", ".join(f"{name} {s}" for name, s in case.row.published.items()) or "-",
  ]


def _one_gpu(found: Mapping[str, dict]) -> str:
  """`single`, which is OOM where only the CPU could hold the whole step."""
  single, cpu = (found.get(s, {}) for s in ("single", "cpu"))
  is_cpu = (
    "step_time_us" in cpu
    and single.get("step_time_us") == (cpu["step_time_us"])
  )
  return "OOM" if is_cpu else shown(single)


def _means(cases: Sequence[Case]) -> list[str]:
  """Geometric means of our ratios and of the published, of what is there."""
  ours = [[c.rated[s] for c in cases if s in c.rated] for s in RATIOS]
  human = [r for c in cases if (r := _published_ratio(c.row)) is not None]
  return [_number(report.geometric_mean(values)) for values in (*ours, human)]


def _everyone(cases: list[Case], cell: Callable[[dict], str]) -> str:
  """A line per row, a column per strategy."""
  strategies = list(dict.fromkeys(s for case in cases for s in case.found))
  return report.markdown(
    ("model", *strategies),
    [[c.label, *(cell(c.found.get(s, {})) for s in strategies)] for c in cases],
  )


def glance(by_gpu: Mapping[str, list[Case]]) -> str:
  """A short line per row and cluster, and each GPU's geometric means."""
  lines = []
  for gpu, cases in by_gpu.items():
    lines += [_glance_cells(case) for case in cases]
    lines.append(["*geometric mean*", f"*{gpu}*", *[""] * 4, *_means(cases)])
  return report.markdown(GLANCE_HEADS, lines)


def _glance_cells(case: Case) -> list[str]:
  rivals = _rivals(case.found)
  one_shot = [s for s in rivals if s not in SEARCHES]
  best = min(one_shot, key=lambda s: rivals[s], default="")
  return [
    *(case.row.label, case.cluster, shown(case.found.get("expert", {}))),
    f"{shown(case.found[best])} {best}" if best else "-",
    *(shown(case.found.get(s, {})) for s in ("annealing", "auto")),
    *(_number(case.rated.get(s)) for s in RATIOS),
    _number(_published_ratio(case.row)),
  ]


def _effort(result: dict) -> str:
  """Seconds until a result was found."""
  if "step_time_us" not in result:
    return shown(result)
  seconds = result["seconds_to_best"]
  return f"{seconds:.1f} ({result['evaluations_to_best']:,})"


def _number(value: float | None) -> str:
  return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _published_ratio(row: published.Row) -> float | None:
  """The published human expert's time over the paper's own method's."""
  own = row.published.get("GO", row.published.get("Placeto"))
  human = row.published.get("human", row.published.get("expert"))
  both = isinstance(own, float) and isinstance(human, float)
  return human / own if both else None


def _picture(by_gpu: Mapping[str, list[Case]]) -> Figure:
  """Per GPU, each placer's step time over that of `auto`, where it has run."""
  by_gpu = {
    gpu: rated
    for gpu, cases in by_gpu.items()
    if (rated := [case for case in cases if case.rated])
  }
  height = max(1, len(by_gpu))
  figure = Figure(figsize=(9, 4 * height), layout="constrained")
  panels = figure.subplots(height, 1, squeeze=False)[:, 0]
  for panel, (gpu, cases) in zip(panels, by_gpu.items(), strict=False):
    strategies = dict.fromkeys(s for case in cases for s in case.found)
    for number, strategy in enumerate(strategies):
      points = _points(cases, strategy)
      marker = MARKERS[number // 10 % len(MARKERS)]  # of ten colours each
      if points and strategy != "cpu":
        at = zip(*points, strict=True)
        panel.plot(*at, marker, label=strategy, alpha=0.7)
    panel.axhline(1, color="black", linewidth=1)
    panel.set_yscale("log")
    panel.set_ylim(0.9, SLOWEST)
    panel.set_yticks(range(1, SLOWEST + 1), range(1, SLOWEST + 1))
    panel.minorticks_off()
    panel.set_ylabel(f"step time / that of auto, to {SLOWEST}")
    panel.set_title(gpu)
    labels = [case.label for case in cases]
    panel.set_xticks(range(len(cases)), labels, rotation=30, ha="right")
    panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
  return figure


def _points(cases: list[Case], strategy: str) -> list[tuple[int, float]]:
  """(row, step time over that of `auto`) where both found a placement."""
  both = [
    (i, case.found[strategy], case.found["auto"])
    for i, case in enumerate(cases)
    if strategy in case.found and "auto" in case.found
  ]
  return [
    (i, one["step_time_us"] / auto["step_time_us"])
    for i, one, auto in both
    if "step_time_us" in one and "step_time_us" in auto
  ]
