"""Samples of the policy `ordered` on graphs whose costs others measured.

For each graph of a folder of `NAME.json.gz`, on each of several clusters: the
best of the policy's samples of 10 s on one core over the best one-shot placer,
beside as many random changes of the same placement. Nothing was trained or
chosen on these graphs.

  python -m benchmarks.learned.run_other_graphs --data_dir=DATA
"""

import pathlib

from absl import flags

from benchmarks.learned import run_holdout
from benchmarks.lib import report, saved_rows
from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.core import Problem, presets
from tfplace.formats import load_graph
from tfplace.placers.place import warm_up
from tfplace.placers.registry import classical

OPTIONS = Options("run_other_graphs", __doc__)
_DATA = OPTIONS.add("data_dir", None, "Folder of the graphs.")
_CLUSTERS = OPTIONS.add("clusters", ["v100x4", "v100x8"], "Built-in clusters.")
_SECONDS = OPTIONS.add("seconds", 10.0, "Of the policy's samples.")
_POLICY = OPTIONS.add(
  "policy", None, "Exported policy; the shipped one if none."
)
_OUT = OPTIONS.out("other_graphs.json")


def main(_: flags.FlagValues) -> None:
  if _DATA.value is None:
    raise cli.UsageError("--data_dir is missing: the folder of the graphs")
  paths = sorted(pathlib.Path(_DATA.value).glob("*.json.gz"))
  if not paths:
    raise cli.UsageError(f"--data_dir={_DATA.value!r} has no *.json.gz")
  cli.load_tensorflow()
  saved_rows.pin_to_cores(1)
  settings = {
    "policy": _POLICY.value or "shipped",
    "seconds": _SECONDS.value,
  }
  saved = saved_rows.SavedRows(_OUT.value, settings)
  found = {}
  for path in paths:
    graph = load_graph(path)
    for name in _CLUSTERS.value:
      problem = Problem(graph, presets.cluster_preset(name))
      label = f"{graph.name} ({name})"
      found[label] = {
        "alone": saved.row(label, lambda problem=problem: measured(problem))
      }
  report.write(_OUT.value, run_holdout.alone_table(found))


def measured(problem: Problem) -> dict:
  """Results of `run_holdout.alone`, after kernels have been compiled."""
  for strategy in ("auto", *classical(problem)):
    warm_up(strategy, problem.cluster.has_message_costs)
  return run_holdout.alone(problem, _POLICY.value, _SECONDS.value)


if __name__ == "__main__":
  OPTIONS.run(main)
