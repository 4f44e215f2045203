"""Every placer on training graphs whose costs others measured.

BERT (3 layers), GNMT and ResNet-50, each with its cluster, from a folder of
`NAME.json.gz` and `NAME.cluster.json`. Prints a table of step times over the
simple lower bound, with the proven bound beside it, and writes JSON and a
picture of how the searches converge.

  python -m benchmarks.placement.run_shared_graphs --data_dir=DATA \\
      --budget_s=60
"""

import pathlib
import statistics

from absl import flags
from matplotlib.figure import Figure
from rich import console, table

from benchmarks.lib.command import Options
from tfplace import bounds, placers
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.errors import TfplaceError
from tfplace.formats import load_cluster, load_graph
from tfplace.formats.json_file import write_json

# What a search of 60 s should reach, as multiples of the simple lower bound.
TARGETS = {
  "bert3_training_ops": 1.07,
  "gnmt_training_layers": 1.02,
  "resnet50_training_ops": 1.05,
}
SEARCHES = ("annealing", "auto")
OPTIONS = Options("run_shared_graphs", __doc__)
OPTIONS.add("data_dir", None, "Folder of the graphs and their clusters.")
_BUDGET_S = OPTIONS.add("budget_s", 60.0, "Seconds for each search.")
_SEEDS = OPTIONS.add("seeds", ["0"], "Seeds of the searches.")
_STRATEGIES = OPTIONS.add(
  "strategies",
  ["single", "blocks", "expert", "m_topo", "m_etf", "heft", *SEARCHES],
  "Placers.",
)
_OUT = OPTIONS.out("shared_graphs.json")


def load_problems(folder: pathlib.Path) -> dict[str, Problem]:
  """Every graph of a folder that has a cluster beside it."""
  problems = {}
  for path in sorted(folder.glob("*.json.gz")):
    name = path.name.removesuffix(".json.gz")
    cluster = folder / f"{name}.cluster.json"
    if cluster.exists():
      problems[name] = bounds.tightened(
        Problem(load_graph(path), load_cluster(cluster)), limit_s=10
      )
  return problems


def measure(problem: Problem, strategy: str, seed: int) -> dict:
  """One placer's result on one problem."""
  try:
    result = placers.place(problem, strategy, _BUDGET_S.value, seed)
  except TfplaceError as error:
    return {"error": str(error)}
  bound = problem.simple_bound_us
  return {
    "step_time_us": result.evaluation.step_time_us,
    "ratio_to_bound": result.evaluation.step_time_us / bound,
    "ratio_to_proven": result.evaluation.step_time_us / problem.lower_bound_us,
    "seconds": result.seconds,
    "evaluations": result.evaluations,
    "history": [
      [point.seconds, point.evaluations, point.step_time_us / bound]
      for point in result.history
    ],
  }


def measure_all(problems: dict[str, Problem]) -> dict[str, dict]:
  """Graph -> strategy -> one row per seed; saved after each graph."""
  rows: dict[str, dict] = {}
  for name, problem in problems.items():
    rows[name] = {}
    for strategy in _STRATEGIES.value:
      seeds = _SEEDS.value if strategy in SEARCHES else ["0"]
      rows[name][strategy] = [
        {"seed": int(seed), **measure(problem, strategy, int(seed))}
        for seed in seeds
      ]
      found = [row.get("ratio_to_bound") for row in rows[name][strategy]]
      print(name, strategy, found, flush=True)
    write_json(_OUT.value, {"budget_s": _BUDGET_S.value, "graphs": rows})
  return rows


def print_table(rows: dict[str, dict]) -> None:
  """Ratios to the lower bound: the median over the seeds, and the worst."""
  grid = table.Table(title=f"step time / simple bound, {_BUDGET_S.value:g} s")
  grid.add_column("placer")
  for name in rows:
    grid.add_column(name, justify="right")
  grid.add_row("target", *[f"{TARGETS.get(name, 1.0):.2f}" for name in rows])
  grid.add_row("proven bound", *[f"{_proven(rows[n]):.4f}" for n in rows])
  for strategy in _STRATEGIES.value:
    cells = []
    for name in rows:
      found = [
        row["ratio_to_bound"]
        for row in rows[name][strategy]
        if "error" not in row
      ]
      cells.append(
        f"{statistics.median(found):.4f} ({max(found):.4f})" if found else "-"
      )
    grid.add_row(strategy, *cells)
  console.Console().print(grid)


def _proven(strategies: dict[str, list[dict]]) -> float:
  """The proven bound over the simple one, from any row."""
  found = (row for line in strategies.values() for row in line)
  row = next(row for row in found if "error" not in row)
  return row["ratio_to_bound"] / row["ratio_to_proven"]


def save_picture(rows: dict[str, dict]) -> None:
  """Best step time over seconds, one panel per graph."""
  figure = Figure(figsize=(4.5 * len(rows), 3.5))
  panels = figure.subplots(1, len(rows), squeeze=False)[0]
  for panel, (name, strategies) in zip(panels, rows.items(), strict=True):
    for color, strategy in zip(("C0", "C1"), SEARCHES, strict=True):
      for row in strategies.get(strategy, []):
        if row.get("history"):
          seconds = [point[0] for point in row["history"]]
          ratios = [point[2] for point in row["history"]]
          panel.step(
            [*seconds, row["seconds"]],
            [*ratios, ratios[-1]],
            where="post",
            color=color,
            label=strategy if row["seed"] == 0 else None,
          )
    if name in TARGETS:
      panel.axhline(TARGETS[name], color="black", linestyle=":")
    panel.axhline(_proven(strategies), color="black", linewidth=1)
    panel.set_xscale("log")
    panel.set_title(name)
    panel.set_xlabel("seconds")
    panel.set_ylabel("step time / simple bound")
    panel.legend()
  figure.tight_layout()
  figure.savefig(pathlib.Path(_OUT.value).with_suffix(".png"), dpi=100)


def main(values: flags.FlagValues) -> None:
  folder = pathlib.Path(cli.required(values, "data_dir"))
  problems = load_problems(folder)
  if not problems:
    raise cli.UsageError(f"--data_dir: no graph with a cluster in {folder}")
  rows = measure_all(problems)
  print_table(rows)
  save_picture(rows)


if __name__ == "__main__":
  OPTIONS.run(main)
