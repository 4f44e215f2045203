"""Tables and the CDFs of what `run_placeto.py` found."""

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from benchmarks.learned import methods_report
from benchmarks.lib import report

PLACETO, RNN, RANDOM = "placeto", "rnn", "random"
TRAINED, ZERO_SHOT = "trained on the graph", "zero-shot"
DEFAULT = "as it is"
Family = Mapping[str, dict]  # label of a test member -> its facts and runs


def arm(strategy: str, variant: str, how: str) -> str:
  """Name of a way to place."""
  name = strategy if variant == DEFAULT else f"{strategy}, {variant}"
  return f"{name}, {how}"


# In the order of the tables and the pictures.
ARMS = (
  *(arm(PLACETO, DEFAULT, how) for how in (ZERO_SHOT, TRAINED)),
  *(arm(RNN, DEFAULT, how) for how in (ZERO_SHOT, TRAINED)),
  RANDOM,
)


def tables(found: Mapping[str, Family], about: Mapping[str, int]) -> list[str]:
  """Markdown: step times, placements needed, ablations."""
  return [
    f"Trained on {about['members']} members of a family at most, for"
    f" {about['pretraining']} iterations; {about['decisions']} groups;"
    f" {about['zero_shot']} placements zero-shot, {about['evaluations']} in"
    " training on the graph itself and at random; step time / proven bound,"
    " geometric mean over the unseen members.",
    "",
    *step_times(found, about["zero_shot"]),
    "",
    *samples(found),
    "",
    *ablations(found),
  ]


def step_times(found: Mapping[str, Family], few: int) -> list[str]:
  """A line per way to place, a column per family."""
  families = list(found)
  sizes = [f"{name} ({len(found[name])} graphs)" for name in families]
  lines = []
  for name in ARMS:
    lines.append(
      [name, *(cell(ratios(found[family], name)) for family in families)]
    )
  lines.append(
    [
      f"{RANDOM}, {few} placements",
      *(cell(ratios(found[family], RANDOM, few)) for family in families),
    ]
  )
  for name in ("single", "expert"):
    lines.append([name, *(cell(known_us(found[f], name)) for f in families)])
  return report.markdown(["placed by", *sizes], lines).splitlines()


def ratios(family: Family, name: str, most: int | None = None) -> list[float]:
  """Best step time over the bound, for each graph: the median of the seeds;
  of `most` placements only, if given. Infinite where nothing fits, empty
  without runs."""
  result = []
  for member in family.values():
    runs = member["runs"].get(name)
    if not runs:
      return []
    best = statistics.median(methods_report.best_us(run, most) for run in runs)
    result.append(best / member["graph"]["lower_bound_us"])
  return result


def known_us(family: Family, name: str) -> list[float]:
  """Step time of a one-shot placer over the bound, for each graph."""
  return [
    member["graph"][f"{name}_us"] / member["graph"]["lower_bound_us"]
    for member in family.values()
  ]


def cell(values: Sequence[float]) -> str:
  """The geometric mean."""
  if not values:
    return "-"
  if math.inf in values:
    return "OOM"
  return f"{report.geometric_mean(values):.3f}"


def samples(found: Mapping[str, Family]) -> list[str]:
  """Placements until a step time is no longer than the RNN's best."""
  rnn, placeto, shot = ARMS[3], ARMS[1], ARMS[0]
  lines = []
  for name, family in found.items():
    needed: dict[str, list[float]] = {rnn: [], placeto: [], shot: []}
    for member in family.values():
      runs = member["runs"]
      goal = statistics.median(
        methods_report.best_us(run, None) for run in runs[rnn]
      )
      for mine, counts in needed.items():
        counts.append(methods_report.evaluations_to(runs[mine], goal))
    lines.append([name, *map(count, needed.values())])
  head = [
    "placements to the best of rnn",
    "rnn",
    "placeto",
    "placeto zero-shot",
  ]
  return report.markdown(head, lines).splitlines()


def count(needed: Sequence[float]) -> str:
  """The median of those that get there, and how many do."""
  finite = [number for number in needed if math.isfinite(number)]
  of = f"{len(finite)} of {len(needed)}"
  return f"{statistics.median(finite):,.0f} ({of})" if finite else f"- ({of})"


def ablations(found: Mapping[str, Family]) -> list[str]:
  """A line per variant of Placeto, a pair of columns per family."""
  variants = [DEFAULT]
  for family in found.values():
    for member in family.values():
      parts = [name.split(", ") for name in member["runs"]]
      variants += [p[1] for p in parts if p[0] == PLACETO and len(p) == 3]
  lines = [
    [
      variant,
      *(
        cell(ratios(family, arm(PLACETO, variant, how)))
        for family in found.values()
        for how in (ZERO_SHOT, TRAINED)
      ),
    ]
    for variant in dict.fromkeys(variants)
  ]
  head = [f"{f}, {how}" for f in found for how in (ZERO_SHOT, TRAINED)]
  return report.markdown(["placeto", *head], lines).splitlines()


def draw(found: Mapping[str, Family], path: pathlib.Path) -> None:
  """CDFs of the step times over the unseen members, a panel per family."""
  figure = Figure(figsize=(4.5 * len(found), 4.2), layout="constrained")
  panels = figure.subplots(1, len(found), squeeze=False)[0]
  for panel, (name, family) in zip(panels, found.items(), strict=True):
    for color, way in enumerate(ARMS):
      values = sorted(v for v in ratios(family, way) if math.isfinite(v))
      if not values:
        continue
      panel.step(
        [values[0], *values],
        [at / len(family) for at in range(len(values) + 1)],
        where="post",
        color=f"C{color}",
        linestyle="--" if ZERO_SHOT in way else "-",
        label=way,
      )
    panel.set(
      title=f"{name}, {len(family)} unseen members",
      xlabel="step time / bound",
      ylabel="share of the graphs",
    )
  handles, names = panels[0].get_legend_handles_labels()
  figure.legend(
    handles, names, loc="outside lower center", ncols=3, fontsize="small"
  )
  figure.savefig(path, dpi=100)
