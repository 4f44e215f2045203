"""Learned placers against each other and against search, on published rows.

Every strategy gets the same number of simulator evaluations per run, or the
same seconds of training (`--seconds`), and the same number of tuning trials:
with the first seed each of its `--trials` settings is run, and the best one of
them also with the other seeds. Policies start from random weights, on one
graph, unless `--imitation_steps` says otherwise. Each run is a process of its
own that goes on from its checkpoint where it was cut off; what is in the JSON
is kept. Writes JSON, tables in Markdown, at equal evaluations and at equal
seconds, and curves of the best step time against both. Needs the extra `train`.

  python -m benchmarks.learned.run_methods --rows='2-layer' \\
      --evaluations=2000 --trials=1
  python -m benchmarks.learned.run_methods                     # nights
"""

import json
import os
import pathlib
import re
import subprocess
import sys

from absl import flags

from benchmarks.learned import methods_report
from benchmarks.learned.method_runs import SETTINGS
from benchmarks.lib import command, one_gpu
from benchmarks.lib.command import Options
from tfplace import bounds, core, formats
from tfplace.bin import cli, sources
from tfplace.formats.json_file import write_json
from tfplace.learned import training_process

_RUNS = "benchmarks.learned.method_runs"
OPTIONS = Options("run_methods", __doc__, one_gpu.VALUES)
_GRAPHS = OPTIONS.add(
  "graphs", [], "tfplace.graph.v1 files instead of rows, on --cluster."
)
_CLUSTER = OPTIONS.add(
  "cluster", "k80x2", "Devices for --graphs: a preset or a cluster file."
)
_STRATEGIES = OPTIONS.add("strategies", list(SETTINGS), "What to run.")
_SEEDS = OPTIONS.add("seeds", ["0", "1", "2"], "Seeds.")
_LARGE_OPS = OPTIONS.add(
  "large_ops", 10_000, "Graphs of at least so many ops get the first seed only."
)
_EVALUATIONS = OPTIONS.add(
  "evaluations", 10_000, "Simulator evaluations of each run."
)
_SECONDS = OPTIONS.add(
  "seconds",
  None,
  "Of each run, in place of --evaluations: of the processor; of the clock where"
  " nothing is trained.",
  least=1.0,
  kind=float,
)
_TRIALS = OPTIONS.add(
  "trials", 2, "Settings tried per strategy, on each row.", 1, 3
)
_DECISIONS = OPTIONS.add(
  "decisions", 256, "Groups that Placeto, RNN and the merged ones place."
)
_IMITATION = OPTIONS.add(
  "imitation_steps", 0, "Imitation of the best one-shot placement, before."
)
_WORK = OPTIONS.add(
  "work_dir", ".learned", "Where runs keep graphs and checkpoints."
)
_OUT = OPTIONS.out("learned.json")
_REPORT_ONLY = OPTIONS.add("report_only", False, "Run nothing.")


def main(_: flags.FlagValues) -> None:
  training_process.check_packages()
  command.check_names("strategies", _STRATEGIES.value, SETTINGS)
  out = pathlib.Path(_OUT.value)
  results = load(out)
  if not _REPORT_ONLY.value:
    os.makedirs(out.parent, exist_ok=True)
    for label, path, cluster in cases():
      run_case(label, path, cluster, results, out)
  methods_report.write(results, out)


def load(out: pathlib.Path) -> dict:
  """Results of an earlier run with the same budgets."""
  about = {
    "evaluations": _EVALUATIONS.value,
    "trials": _TRIALS.value,
    "decisions": _DECISIONS.value,
    "imitation_steps": _IMITATION.value,
  }
  if _SECONDS.value:
    about = {**about, "evaluations": sys.maxsize, "seconds": _SECONDS.value}
  if not out.exists():
    return {"about": about, "graphs": {}, "runs": {}}
  found = json.loads(out.read_text(encoding="utf-8"))
  if found["about"] != about and not _REPORT_ONLY.value:
    raise cli.UsageError(
      f"{out} holds runs of {found['about']}, not {about}: choose another --out"
    )
  return found


def cases() -> list[tuple[str, pathlib.Path, str]]:
  """(label, graph file, cluster) of what the flags name."""
  cluster = _CLUSTER.value
  given = [pathlib.Path(path) for path in _GRAPHS.value]
  if given:
    return [
      (
        f"{path.name.split('.')[0]}/{sources.load_cluster(cluster).name}",
        path,
        cluster,
      )
      for path in given
    ]
  return [
    (
      f"{row.label}/{one_gpu.cluster_of(row)}",
      one_gpu.graph_file(row, pathlib.Path(_WORK.value) / "graphs"),
      one_gpu.cluster_of(row),
    )
    for row in one_gpu.rows()
  ]


def run_case(
  label: str,
  path: pathlib.Path,
  cluster: str,
  results: dict,
  out: pathlib.Path,
) -> None:
  """Runs what is missing of one graph on one cluster."""
  if label not in results["graphs"]:
    problem = bounds.tightened(
      core.Problem(formats.load_graph(path), sources.load_cluster(cluster))
    )
    results["graphs"][label] = {
      "ops": problem.graph.num_ops,
      "groups": problem.num_groups,
      "lower_bound_us": problem.lower_bound_us,
    }
  is_large = results["graphs"][label]["ops"] >= _LARGE_OPS.value
  seeds = [int(seed) for seed in _SEEDS.value[: 1 if is_large else None]]
  for strategy in _STRATEGIES.value:
    settings = range(min(_TRIALS.value, len(SETTINGS[strategy])))
    for trial in settings:
      run(label, path, cluster, strategy, trial, seeds[0], results, out)
    best = methods_report.best_trial(results, label, strategy, seeds[0])
    for seed in seeds[1:]:
      run(label, path, cluster, strategy, best, seed, results, out)


def run(
  label: str,
  path: pathlib.Path,
  cluster: str,
  strategy: str,
  trial: int,
  seed: int,
  results: dict,
  out: pathlib.Path,
) -> None:
  """One run, in a process that may train; kept in `results` and on disk."""
  key = f"{label}/{strategy}/{trial}/{seed}"
  if key in results["runs"]:
    return
  work = pathlib.Path(_WORK.value) / re.sub(r"\W+", "_", key)
  work.mkdir(parents=True, exist_ok=True)
  job = {
    "graph": str(path),
    "cluster": cluster,
    "strategy": strategy,
    "trial": trial,
    "seed": seed,
    "evaluations": results["about"]["evaluations"],
    "seconds": results["about"].get("seconds"),
    "decisions": _DECISIONS.value,
    "imitation_steps": _IMITATION.value,
    "work_dir": str(work),
  }
  subprocess.run(
    [sys.executable, "-m", _RUNS, json.dumps([job])],
    check=True,
    env={**os.environ, training_process.SWITCH: "1"},
  )
  result = json.loads((work / "result.json").read_text(encoding="utf-8"))
  results["runs"][key] = result
  write_json(out, results)
  print(key, methods_report.shown(result), flush=True)


if __name__ == "__main__":
  OPTIONS.run(main)
