"""Every placer on every row of the published tables: one table.

Simulated step time of each placer within the same seconds, beside the bound,
the human expert and the published figures. Each result is saved as soon as it
is there, so that a run that was cut off goes on; one of another budget needs
another `--out`. Writes JSON, Markdown and a picture; `--quick` to files of its
own, `suite_quick.*`.

  python -m benchmarks.placement.run_suite --quick  # three minutes of a core
  python -m benchmarks.placement.run_suite                    # a night
  python -m benchmarks.placement.run_suite --gpus=p100 --rows='GNMT|RNNLM'
"""

import json
import math
import pathlib
import re
import time

from absl import flags

from benchmarks.lib import command, published
from benchmarks.lib.command import Options
from benchmarks.placement import suite_report
from tfplace import bounds, placers
from tfplace.bin import cli
from tfplace.core import OpGraph, Problem
from tfplace.core.presets import cluster_preset
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.formats.json_file import write_json
from tfplace.plan import graph_cache, sources

QUICK_ROWS = "^(2-layer .*|Inception b32|2-stack .*)$"
QUICK_BUDGET_S = 5.0
GPUS = ("k80", "p100", "v100", "h100")
# Grows with each change of search or simulator that changes what they find in
# seconds. Results without a version have version 1.
SEARCH_VERSION = 4
OPTIONS = Options("run_suite", __doc__)
_QUICK = OPTIONS.add(
  "quick", False, "Small rows on P100s, with searches of 5 s."
)
_GPUS = OPTIONS.add("gpus", list(GPUS), "GPUs of the presets.")
_ROWS = OPTIONS.add("rows", "", "Pattern of the rows' labels.")
_STRATEGIES = OPTIONS.add(
  "strategies",
  list(placers.READY),
  "Placers.",
)
_BUDGET_S = OPTIONS.add("budget_s", 60.0, "Seconds for each search.")
_SEEDS = OPTIONS.add("seeds", ["0", "1", "2"], "Seeds of the searches.")
_CACHE = OPTIONS.add(
  "graph_cache_dir",
  graph_cache.default_directory(),
  "Where extracted graphs are kept between runs; empty: nowhere.",
)
_OUT = OPTIONS.add(
  "out", None, "JSON file to write; by default results/suite.json beside this."
)
_REPORT_ONLY = OPTIONS.add("report_only", False, "Run nothing.")
# Their result depends on the seed; the others run once.
SEEDED = ("metis", "scotch", "annealing", "brkga", "gdp", "auto")


def main(_: flags.FlagValues) -> None:
  name = "suite_quick.json" if _QUICK.value else "suite.json"
  out = pathlib.Path(_OUT.value or command.RESULTS / name)
  budget_s = QUICK_BUDGET_S if _QUICK.value else _BUDGET_S.value
  results = load(out, budget_s)
  if not _REPORT_ONLY.value:
    for row in chosen_rows():
      run_row(row, budget_s, results, out)
  suite_report.write(results, out)


def load(out: pathlib.Path, budget_s: float) -> dict:
  """Results of an earlier run with the same budget."""
  if not out.exists():
    return {"budget_s": budget_s, "graphs": {}, "results": {}}
  found = json.loads(out.read_text(encoding="utf-8"))
  if found["budget_s"] != budget_s:
    raise cli.UsageError(
      f"{out} holds searches of {found['budget_s']:g} s, not {budget_s:g} s:"
      " choose another --out"
    )
  return found


def chosen_rows() -> list[published.Row]:
  """The rows that the flags name."""
  pattern = QUICK_ROWS if _QUICK.value else _ROWS.value
  rows = [row for row in published.ROWS if re.search(pattern, row.label)]
  if not rows:
    raise cli.UsageError(f"--rows={pattern!r} names no row")
  return rows


def run_row(
  row: published.Row, budget_s: float, results: dict, out: pathlib.Path
) -> None:
  """Runs what is missing of one row, on each GPU."""
  gpus = ["p100"] if _QUICK.value else _GPUS.value
  jobs = {
    gpu: missing(row, gpu, results["results"])
    for gpu in gpus
    if gpu in row.gpus
  }
  wanted = [gpu for gpu in jobs if jobs[gpu]]
  for gpu, graph in zip(wanted, graphs_of(row, wanted), strict=True):
    problem = bounds.tightened(Problem(graph, cluster_preset(row.cluster(gpu))))
    results["graphs"][f"{row.label}/{row.cluster(gpu)}"] = {
      "ops": problem.graph.num_ops,
      "edges": problem.graph.num_edges,
      "lower_bound_us": problem.lower_bound_us,
      "simple_bound_us": problem.simple_bound_us,
    }
    for key, strategy, seed in jobs[gpu]:
      results["results"][key] = measure(problem, strategy, budget_s, seed)
      write_json(out, results)
      print(key, suite_report.shown(results["results"][key]), flush=True)


def missing(
  row: published.Row, gpu: str, done: dict
) -> list[tuple[str, str, int]]:
  """(key, strategy, seed) of what is still to be run."""
  seeds = _SEEDS.value[:1] if _QUICK.value else _SEEDS.value
  jobs = []
  for strategy in _STRATEGIES.value:
    for seed in seeds if strategy in SEEDED else seeds[:1]:
      key = f"{row.label}/{row.cluster(gpu)}/{strategy}/{seed}"
      if key not in done:
        jobs.append((key, strategy, int(seed)))
  return jobs


def graphs_of(row: published.Row, gpus: list[str]) -> list[OpGraph]:
  """The training graph with each GPU's costs, from the cache if it is there."""
  began = time.perf_counter()
  graphs = sources.extract_each(
    row.model,
    [row.cluster(gpu) for gpu in gpus],
    batch_size=row.batch_size,
    sizes=row.sizes,
    cache_dir=_CACHE.value,
  )
  seconds = time.perf_counter() - began
  for graph in graphs[:1]:
    print(f"{row.label}: {graph.num_ops} ops in {seconds:.0f} s", flush=True)
  return graphs


def measure(
  problem: Problem, strategy: str, budget_s: float, seed: int
) -> dict:
  """One placer's result; `oom` where nothing that it tried fits."""
  try:
    found = placers.place(problem, strategy, budget_s, seed)
  except InfeasibleError as error:
    return {"oom": str(error)}
  except TfplaceError as error:  # a package that is not installed
    return {"error": str(error)}
  history = [
    [point.seconds, point.evaluations, point.step_time_us]
    for point in found.history
  ]
  return {
    "search_version": SEARCH_VERSION,
    "step_time_us": found.evaluation.step_time_us,
    "seconds": found.seconds,
    "evaluations": found.evaluations,
    "seconds_to_best": history[-1][0] if history else found.seconds,
    "evaluations_to_best": history[-1][1] if history else found.evaluations,
    "history": history,
    "peak_memory_bytes": max(found.evaluation.peak_memory_bytes.values()),
    "bytes_moved": found.evaluation.bytes_moved,
    "won_by": found.history[-1].strategy if found.history else strategy,
    "is_finite": math.isfinite(found.evaluation.step_time_us),
  }


if __name__ == "__main__":
  OPTIONS.run(main)
