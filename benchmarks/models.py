"""Every placer on the training graphs of Inception-V3 and NMT.

Simulated step time, ratio to the proven bound and to the human expert, and
seconds taken, for each model and cluster, as a table, JSON and a picture.
Rows already in the JSON file are kept, so that a run that was cut off goes
on; `--fresh` starts again.

  python benchmarks/models.py --budget_s=60
"""

import json
import pathlib

from absl import app, flags
from matplotlib.figure import Figure
from rich import console, table

from tfplace import bounds, cache, extraction, placers
from tfplace.errors import TfplaceError
from tfplace.graph import Problem
from tfplace.graph.json_file import write_json
from tfplace.graph.presets import cluster_preset

HERE = pathlib.Path(__file__).parent
RATIOS = ("/ bound", "/ simple bound", "/ expert")
_MODELS = flags.DEFINE_list("models", ["inception_v3", "nmt"], "Zoo models.")
_CLUSTERS = flags.DEFINE_list(
  "clusters", ["k80x2", "k80x4", "v100x4"], "Cluster presets."
)
_STRATEGIES = flags.DEFINE_list(
  "strategies",
  list(placers.READY),
  "Placers.",
)
_BUDGET_S = flags.DEFINE_float("budget_s", 60.0, "Seconds for each search.")
_SEEDS = flags.DEFINE_list("seeds", ["0"], "Seeds of the searches.")
_CACHE = flags.DEFINE_string(
  "graph_cache_dir",
  cache.default_directory(),
  "Where extracted graphs are kept; empty for nowhere.",
)
_OUT = flags.DEFINE_string(
  "out", str(HERE / "results" / "models.json"), "JSON file to write."
)
_FRESH = flags.DEFINE_bool("fresh", False, "Measure every row again.")


def measure_row(problem: Problem, strategy: str, seed: int) -> dict:
  """One placer's result on one problem."""
  try:
    result = placers.place(problem, strategy, _BUDGET_S.value, seed)
  except TfplaceError as error:  # it does not fit, or is not installed
    return {"error": str(error)}
  evaluation = result.evaluation
  return {
    "step_time_us": evaluation.step_time_us,
    "lower_bound_us": problem.lower_bound_us,
    "ratio_to_bound": evaluation.step_time_us / problem.lower_bound_us,
    "simple_bound_us": problem.simple_bound_us,
    "seconds": result.seconds,
    "evaluations": result.evaluations,
    "peak_memory_bytes": dict(evaluation.peak_memory_bytes),
    "bytes_moved": evaluation.bytes_moved,
    "won_by": result.history[-1].strategy if result.history else strategy,
  }


def all_rows(rows: dict[str, dict]) -> dict[str, dict]:
  """Fills in the rows that are missing, saving after each."""
  for cluster in _CLUSTERS.value:
    for model in _MODELS.value:
      graph = extraction.extract(model, cluster, cache_dir=_CACHE.value)
      problem = bounds.tightened(Problem(graph, cluster_preset(cluster)))
      for strategy in _STRATEGIES.value:
        for seed in _SEEDS.value:
          key = f"{model}/{cluster}/{strategy}/{seed}"
          if key in rows:
            continue
          rows[key] = measure_row(problem, strategy, int(seed))
          print(key, rows[key].get("ratio_to_bound", "does not fit"))
          save(rows)
  return rows


def save(rows: dict[str, dict]) -> None:
  write_json(_OUT.value, {"budget_s": _BUDGET_S.value, "rows": rows})


def median_rows(rows: dict[str, dict], model: str, cluster: str) -> dict:
  """Strategy -> the row of the median step time over the seeds."""
  found: dict[str, list[dict]] = {}
  for key, row in rows.items():
    its_model, its_cluster, strategy, _ = key.split("/")
    if (its_model, its_cluster) == (model, cluster) and "error" not in row:
      found.setdefault(strategy, []).append(row)
  return {
    strategy: sorted(group, key=lambda r: r["step_time_us"])[len(group) // 2]
    for strategy, group in found.items()
  }


def print_table(rows: dict[str, dict]) -> None:
  """One table per model and cluster."""
  for model in _MODELS.value:
    for cluster in _CLUSTERS.value:
      grid = table.Table(title=f"{model} on {cluster}")
      for column in ("placer", "step ms", *RATIOS, "seconds"):
        grid.add_column(column, justify="right")
      chosen = median_rows(rows, model, cluster)
      expert = chosen.get("expert", {}).get("step_time_us", float("nan"))
      for name, row in sorted(
        chosen.items(), key=lambda item: item[1]["step_time_us"]
      ):
        grid.add_row(
          name,
          f"{row['step_time_us'] / 1e3:.2f}",
          f"{row['ratio_to_bound']:.3f}",
          f"{row['step_time_us'] / row['simple_bound_us']:.3f}",
          f"{row['step_time_us'] / expert:.3f}",
          f"{row['seconds']:.1f}",
        )
      console.Console().print(grid)


def save_picture(rows: dict[str, dict]) -> None:
  """Bars of the ratio to the bound, one panel per model and cluster."""
  models, clusters = _MODELS.value, _CLUSTERS.value
  figure = Figure(figsize=(4 * len(clusters), 3.2 * len(models)))
  panels = figure.subplots(len(models), len(clusters), squeeze=False)
  for line, model in zip(panels, models, strict=True):
    for panel, cluster in zip(line, clusters, strict=True):
      chosen = median_rows(rows, model, cluster)
      ordered = sorted(chosen.items(), key=lambda i: -i[1]["step_time_us"])
      shown = [(n, r["ratio_to_bound"]) for n, r in ordered if n != "cpu"]
      panel.barh([n for n, _ in shown], [ratio for _, ratio in shown])
      panel.axvline(1, color="black", linewidth=1)
      panel.set_title(f"{model}, {cluster}")
      panel.set_xlabel("step time / proven bound")
  figure.tight_layout()
  figure.savefig(pathlib.Path(_OUT.value).with_suffix(".png"), dpi=100)


def main(_: list[str]) -> None:
  path = pathlib.Path(_OUT.value)
  rows = {}
  if path.exists() and not _FRESH.value:
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
  rows = all_rows(rows)
  print_table(rows)
  save_picture(rows)


if __name__ == "__main__":
  app.run(main)
