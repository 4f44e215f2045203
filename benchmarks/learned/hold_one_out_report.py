"""Tables and the picture of what `run_hold_one_out.py` found."""

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.learned import methods_report
from benchmarks.lib import report

DEFAULT = "as it is"
TUNED, SCRATCH, BATCH, HDP = "fine-tuned", "from scratch", "batch", "HDP"
HUMAN = "human"
SAMPLES = 17  # placements per iteration, the most probable one among them
# The first iteration's placements: nothing has been learned from the graph.
SHOT, UNTRAINED = "zero-shot", "untrained"
_FIRST_OF = {SHOT: TUNED, UNTRAINED: SCRATCH}
WAYS = (SHOT, UNTRAINED, TUNED, SCRATCH, BATCH, HDP, HUMAN)
Found = Mapping[str, dict]  # row -> facts of its graph, and runs by arm


def arm(variant: str, how: str) -> str:
  """Name of a way to place."""
  return how if variant == DEFAULT else f"{variant}, {how}"


def tables(found: Found, about: Mapping[str, object]) -> list[str]:
  """Markdown: every row, then the ablations."""
  return [
    f"Trained for {about['pretraining']} iterations on the other families;"
    f" {about['decisions']} groups; step time / proven bound, median of the"
    " seeds.",
    "",
    *every_row(found),
    "",
    *ablations(found),
  ]


def every_row(found: Found) -> list[str]:
  """A line per row, a column per way to place it."""
  columns = {
    way: [ratio(member, way) for member in found.values()] for way in WAYS
  }
  columns["most probable"] = [first(member) for member in found.values()]
  lines = [
    [name, *(shown(column[at]) for column in columns.values())]
    for at, name in enumerate(found)
  ]
  lines.append(["*geometric mean*", *(mean(c) for c in columns.values())])
  return report.markdown(["held out", *columns], lines).splitlines()


def ratio(member: dict, way: str) -> float:
  """Best step time over the bound, the median of the seeds; infinite where
  nothing fits, NaN without runs."""
  graph = member["graph"]
  if way == HUMAN:
    return graph["expert_us"] / graph["lower_bound_us"]
  variant, _, how = way.rpartition(", ")
  most = SAMPLES if how in _FIRST_OF else None
  runs = member["runs"].get(arm(variant or DEFAULT, _FIRST_OF.get(how, how)))
  if not runs:
    return math.nan
  best = [methods_report.best_us(run, most) for run in runs]
  return statistics.median(best) / graph["lower_bound_us"]


def first(member: dict) -> float:
  """The same of a trained policy's most probable placement on the graph."""
  runs = member["runs"].get(TUNED)
  if not runs:
    return math.nan
  best = [run["greedy_us"][0] or math.inf for run in runs]
  return statistics.median(best) / member["graph"]["lower_bound_us"]


def ablations(found: Found) -> list[str]:
  """A line per variant: geometric means over the rows that have it."""
  variants = [DEFAULT]
  for member in found.values():
    names = [name.split(", ") for name in member["runs"]]
    variants += [parts[0] for parts in names if len(parts) == 2]
  lines = []
  for variant in dict.fromkeys(variants):
    columns = [
      [ratio(member, arm(variant, how)) for member in found.values()]
      for how in (SHOT, TUNED)
    ]
    lines.append([variant, *map(mean, columns)])
  return report.markdown(["network", SHOT, TUNED], lines).splitlines()


def shown(value: float) -> str:
  if math.isnan(value):
    return "-"
  return "OOM" if math.isinf(value) else f"{value:.3f}"


def mean(values: Sequence[float]) -> str:
  """The geometric mean of all; nothing where one is missing."""
  if not values or not all(map(math.isfinite, values)):
    return "-"
  return shown(report.geometric_mean(values))


def draw(found: Found, path: pathlib.Path) -> None:
  """Bars: the step time of every row over the bound, a color per way;
  untrained policies are too slow to be shown."""
  ways = [way for way in WAYS if way != UNTRAINED]
  figure = Figure(figsize=(2.2 + 1.9 * len(found), 3.8), layout="constrained")
  panel = figure.subplots()
  width = 0.8 / len(ways)
  for number, way in enumerate(ways):
    values = [ratio(member, way) for member in found.values()]
    panel.bar(
      [at + number * width for at in range(len(values))],
      [value if math.isfinite(value) else 0.0 for value in values],
      width,
      label=way,
    )
  panel.axhline(1.0, color="gray", linewidth=0.8)
  panel.set(ylabel="step time / bound", title="Families that were held out")
  panel.set_xticks(
    [at + 0.4 - width / 2 for at in range(len(found))],
    [name.replace("/", "\n") for name in found],
    fontsize="small",
  )
  panel.legend(fontsize="small")
  figure.savefig(path, dpi=100)
