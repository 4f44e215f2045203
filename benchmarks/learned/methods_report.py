"""Tables and curves of what `run_methods.py` found."""

import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import console, table

from benchmarks.lib import report

# Pairs of strategies that papers compare, by step time and by the number of
# placements that the first needs to reach the second's best.
CLAIMS = (
  ("gdp", "hierarchical"),
  ("gdp_merged", "hierarchical_merged"),
  ("gdp_zero_shot", "hierarchical_merged"),
  ("placeto", "rnn"),
)
# Compared at the seconds at which the first of each set ended.
AT_SECONDS = (
  ("gdp", "hierarchical"),
  ("gdp_merged", "hierarchical_merged", "rnn", "placeto"),
)
PRETRAINED, TRAINED = "gdp_pretrained", "gdp_merged"
ZERO_SHOT = "gdp_zero_shot"
COLUMNS = 5  # graphs side by side in the picture
Runs = Mapping[tuple[str, str], Sequence[dict]]
TUNING = 50  # iterations of fine-tuning; GDP claims fewer


def write(results: dict, out: pathlib.Path) -> None:
  """Prints the tables; writes them as Markdown and the curves as a picture."""
  rows = list(results["graphs"])
  strategies = list(dict.fromkeys(k.split("/")[-3] for k in results["runs"]))
  cells = [
    [label, *(cell(results, label, name) for name in strategies)]
    for label in rows
  ]
  about = results["about"]
  limit = f"{about['evaluations']} evaluations"
  if "seconds" in about:
    limit = f"{about['seconds']:g} seconds"
  title = (
    f"{limit} per run, {about['trials']} tuning"
    f" trials per strategy and row, {about['decisions']} groups for those that"
    " merge; best step time / bound, median over seeds"
  )
  shown_table = table.Table("graph", *strategies, title=title)
  for line in cells:
    shown_table.add_row(*line)
  console.Console(width=120).print(shown_table)
  lines = [title, "", report.markdown(["graph", *strategies], cells), ""]
  lines += [sentence for pair in CLAIMS for sentence in claim(results, *pair)]
  lines += transfer(results) + zero_shot(results)
  for names in AT_SECONDS:
    lines += equal_seconds(results, [n for n in names if n in strategies])
  out.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
  if results["runs"]:
    draw(
      results["graphs"],
      {
        (label, name): runs_of(results, label, name)
        for label in rows
        for name in strategies
      },
      out.with_suffix(".png"),
    )


def runs_of(results: dict, label: str, strategy: str) -> list[dict]:
  """The runs of the trial that was best with the first seed, by seed."""
  prefix = f"{label}/{strategy}/"
  seeds = [k.split("/")[-1] for k in results["runs"] if k.startswith(prefix)]
  if not seeds:
    return []
  trial = best_trial(results, label, strategy, int(seeds[0]))
  keys = [f"{prefix}{trial}/{seed}" for seed in dict.fromkeys(seeds)]
  return [results["runs"][key] for key in keys if key in results["runs"]]


def best_trial(results: dict, label: str, strategy: str, seed: int) -> int:
  """Number of the setting with the best step time, the first of several."""
  found = {}
  for key, run in results["runs"].items():
    head, trial, its_seed = key.rsplit("/", 2)
    if head == f"{label}/{strategy}" and int(its_seed) == seed:
      found[int(trial)] = run["step_time_us"] or math.inf
  return min(sorted(found), key=lambda trial: found[trial])


def median_us(results: dict, label: str, strategy: str) -> float | None:
  """Median over seeds of the best step time; None without a run that fits."""
  runs = runs_of(results, label, strategy)
  if not runs:
    return None
  median = statistics.median(r["step_time_us"] or math.inf for r in runs)
  return median if math.isfinite(median) else None


def cell(results: dict, label: str, strategy: str) -> str:
  """The median as a multiple of the graph's bound."""
  if not runs_of(results, label, strategy):
    return "-"
  median = median_us(results, label, strategy)
  if median is None:
    return "OOM"
  return f"{median / results['graphs'][label]['lower_bound_us']:.3f}"


def shown(run: dict) -> str:
  """One run in a few words."""
  step_us = run["step_time_us"]
  best = "nothing fits" if step_us is None else f"{step_us / 1e3:.2f} ms"
  return f"{best} {run['evaluations']} evaluations {run['seconds']:.0f} s"


def claim(results: dict, first: str, second: str) -> list[str]:
  """Compares `first` with `second` over all graphs that have both."""
  ratios, fewer = [], []
  for label in results["graphs"]:
    one, two = (median_us(results, label, name) for name in (first, second))
    if one is None or two is None:
      continue
    ratios.append(two / one)
    spent = evaluations_to(runs_of(results, label, second), two)
    needed = evaluations_to(runs_of(results, label, first), two)
    if needed < math.inf:
      fewer.append(spent / needed)
  if not ratios:
    return []
  sentence = (
    f"- {second} / {first}: {report.geometric_mean(ratios):.3f} times the step"
    f" time (geometric mean of {len(ratios)} graphs); {first} reaches"
    f" {second}'s median on {len(fewer)} of {len(ratios)}"
  )
  if fewer:
    sentence += (
      f", there with {report.geometric_mean(fewer):.1f} times fewer evaluations"
      " (geometric mean)"
    )
  return [sentence + "."]


def equal_seconds(results: dict, strategies: Sequence[str]) -> list[str]:
  """A table of what each had found when the first of them had ended."""
  if len(strategies) < 2:
    return []
  cells, ratios = [], []
  for label, graph in results["graphs"].items():
    runs = [runs_of(results, label, name) for name in strategies]
    if not all(runs):
      continue
    least_s = min(r["seconds"] for found in runs for r in found)
    best = [at_seconds(found, least_s) for found in runs]
    ratios.append([us / graph["lower_bound_us"] for us in best])
    cells.append([label, f"{least_s:.1f}", *map(ratio_cell, ratios[-1])])
  if not ratios:
    return []
  whole = [row for row in ratios if all(map(math.isfinite, row))]
  if whole:
    means = map(report.geometric_mean, zip(*whole, strict=True))
    name = f"*geometric mean of {len(whole)} graphs*"
    cells.append([name, "", *map(ratio_cell, means)])
  text = "At equal seconds, when the first had ended; step time / bound:"
  return [
    "",
    text,
    "",
    report.markdown(["graph", "seconds", *strategies], cells),
  ]


def at_seconds(runs: Sequence[dict], seconds: float) -> float:
  """Median over runs of the best step time by then; infinite if there is
  none."""
  return statistics.median(
    min(
      (us for _, s, us in run["curve"] if us and s <= seconds), default=math.inf
    )
    for run in runs
  )


def ratio_cell(value: float) -> str:
  """A multiple of the bound."""
  return f"{value:.3f}" if math.isfinite(value) else "-"


def transfer(results: dict) -> list[str]:
  """Compares the pre-trained policy with training on the graph itself."""
  shot, tuned = [], []
  for label in results["graphs"]:
    trained = median_us(results, label, TRAINED)
    runs = runs_of(results, label, PRETRAINED)
    if trained is None or not runs:
      continue
    first = statistics.median(r["greedy_us"][0] or math.inf for r in runs)
    if first < math.inf:
      shot.append(first / trained)
    step = statistics.median(r["curve"][:TUNING][-1][2] for r in runs)
    tuned.append(step / trained)
  if not tuned:
    return []
  sentence = f"- Beside {TRAINED}, {PRETRAINED} takes"
  if shot:
    sentence += (
      f" {report.geometric_mean(shot):.3f} times the step time zero-shot"
      f" (geometric mean of the {len(shot)} graphs where that fits), and"
    )
  return [
    f"{sentence} {report.geometric_mean(tuned):.3f} times the step time after"
    f" {TUNING} iterations (of {len(tuned)})."
  ]


def zero_shot(results: dict) -> list[str]:
  """The same of the placer, which keeps the best of its samples."""
  medians = [
    [median_us(results, label, name) for name in (ZERO_SHOT, TRAINED)]
    for label in results["graphs"]
  ]
  ratios = [one / two for one, two in medians if one and two]
  if not ratios:
    return []
  return [
    f"- Beside {TRAINED}, the best of {ZERO_SHOT} takes"
    f" {report.geometric_mean(ratios):.3f} times the step time (geometric mean"
    f" of {len(ratios)} graphs)."
  ]


def evaluations_to(runs: Sequence[dict], step_us: float) -> float:
  """Median over runs of the evaluations to a step time; else infinite."""
  needed = []
  for run in runs:
    reached = [n for n, _, us in run["curve"] if us and us <= step_us]
    needed.append(reached[0] if reached else math.inf)
  return statistics.median(needed)


def best_us(run: dict, most: int | None) -> float:
  """Best step time of a run, after `most` placements; infinite if none."""
  reached = [
    step_us
    for evaluations, _, step_us in run["curve"]
    if step_us and (most is None or evaluations <= most)
  ]
  return min(reached, default=math.inf)


def draw(graphs: Mapping[str, dict], runs: Runs, path: pathlib.Path) -> None:
  """Best step time over the bound against evaluations, and against seconds.

  Args:
    graphs: by label, with their bounds.
    runs: by label and strategy.
    path: picture to write.
  """
  columns = min(len(graphs), COLUMNS)
  bands = -(-len(graphs) // columns)  # each of two rows of panels
  figure = Figure(figsize=(3.6 * columns, 6 * bands), layout="constrained")
  axes = figure.subplots(2 * bands, columns, squeeze=False)
  for panel in axes.flat:
    panel.set_visible(False)
  for number, (label, graph) in enumerate(graphs.items()):
    band, column = divmod(number, columns)
    pair = axes[2 * band : 2 * band + 2, column]
    mine = {name: found for (of, name), found in runs.items() if of == label}
    draw_graph(label, graph["lower_bound_us"], mine, pair)
  axes[0, 0].legend()
  figure.savefig(path, dpi=100)


def draw_graph(
  label: str,
  bound_us: float,
  runs: Mapping[str, Sequence[dict]],
  pair: Sequence[Axes],
) -> None:
  """One graph's two panels: against evaluations, and against seconds."""
  for at, (panel, name) in enumerate(
    zip(pair, ("evaluations", "seconds"), strict=True)
  ):
    for color, (strategy, found) in enumerate(runs.items()):
      for number, run in enumerate(found):
        points = [p for p in run["curve"] if p[2] is not None]
        panel.step(
          [point[at] for point in points],
          [point[2] / bound_us for point in points],
          where="post",
          color=f"C{color}",
          label=None if number else strategy,
        )
    panel.set(title=label, xlabel=name, ylabel="best step time / bound")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_visible(True)
