"""Samples of the policy `ordered` on graphs of other systems.

Their costs were measured by others (a folder of `NAME.json.gz`), or drawn for
task graphs of the scheduling literature (`models/task_graphs.py`). For each on
each of several clusters, on one core: the best of the policy's samples of 10 s
over the best one-shot placer, beside as many random changes of the same
placement, annealing of as many seconds, and the proven bound. Nothing was
trained on these graphs, nor chosen except on the development set.

  python -m benchmarks.learned.run_other_graphs --data_dir=DATA
  python -m benchmarks.learned.run_other_graphs
"""

import pathlib
from collections.abc import Iterator, Mapping

from absl import flags

from benchmarks.learned import run_holdout
from benchmarks.lib import command, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.models.task_graphs import task_graph
from tfplace.bin import cli
from tfplace.bounds import lower_bound
from tfplace.core import Problem, presets
from tfplace.core.budget import Budget
from tfplace.formats import load_graph
from tfplace.placers.place import warm_up
from tfplace.placers.registry import classical, get_placer
from tfplace.simulate import Simulator

# Family, size, communication to computation ratio, cluster and seed. The placer
# was changed once with results of the development rows in view.
TASK_GRAPHS = {
  "development": (
    ("fft", 32, 1.0, "v100x4", 0),
    ("fft", 256, 0.5, "v100x8", 0),
    ("gaussian_elimination", 40, 1.0, "v100x4", 0),
    ("gaussian_elimination", 80, 0.5, "v100x8", 0),
    ("cholesky", 12, 0.5, "v100x4", 0),
    ("cholesky", 28, 1.0, "v100x8", 0),
    ("random_layers", 150, 2.0, "v100x4", 0),
    ("random_layers", 4000, 1.0, "v100x8", 0),
  ),
  "test": (
    ("fft", 64, 0.5, "v100x4", 1),
    ("fft", 128, 1.0, "v100x8", 1),
    ("gaussian_elimination", 25, 0.5, "v100x4", 1),
    ("gaussian_elimination", 60, 1.0, "v100x8", 1),
    ("cholesky", 16, 1.0, "v100x4", 1),
    ("cholesky", 24, 0.5, "v100x8", 1),
    ("random_layers", 400, 1.0, "v100x4", 1),
    ("random_layers", 2000, 2.0, "v100x8", 1),
  ),
}

OPTIONS = Options("run_other_graphs", __doc__)
_DATA = OPTIONS.add("data_dir", "", "Folder of graphs; task graphs if none.")
_SET = OPTIONS.add("set", "test", "Task graphs.", choices=list(TASK_GRAPHS))
_CLUSTERS = OPTIONS.add("clusters", ["v100x4", "v100x8"], "For that folder.")
_SECONDS = OPTIONS.add("seconds", 10.0, "Seconds of the policy's samples.")
_POLICY = OPTIONS.add(
  "policy", None, "Exported policy; the shipped one if none."
)
_OUT = OPTIONS.add(
  "out", None, "JSON file; by default results/other_graphs or task_graphs.json."
)


def main(_: flags.FlagValues) -> None:
  """Measures what is missing; saves after each row."""
  name = "other_graphs.json" if _DATA.value else "task_graphs.json"
  out = _OUT.value or str(command.RESULTS / name)
  cli.check_writable(out)
  problems = list(_measured_by_others() if _DATA.value else _task_graphs())
  cli.load_tensorflow()
  saved_rows.pin_to_cores(1)
  graphs = "measured by others" if _DATA.value else f"task, {_SET.value}"
  settings = {
    "graphs": graphs,
    "policy": _POLICY.value or "shipped",
    "seconds": _SECONDS.value,
  }
  saved = saved_rows.SavedRows(out, settings)
  found = {
    label: saved.row(label, lambda problem=problem: measured(problem))
    for label, problem in problems
  }
  report.write(out, table(found))


def _measured_by_others() -> Iterator[tuple[str, Problem]]:
  paths = sorted(pathlib.Path(_DATA.value).glob("*.json.gz"))
  if not paths:
    raise cli.UsageError(f"--data_dir={_DATA.value!r} has no *.json.gz")
  for path in paths:
    graph = load_graph(path)
    for name in _CLUSTERS.value:
      yield (
        f"{graph.name} ({name})",
        Problem(graph, presets.cluster_preset(name)),
      )


def _task_graphs() -> Iterator[tuple[str, Problem]]:
  for family, size, ccr, name, seed in TASK_GRAPHS[_SET.value]:
    cluster = presets.cluster_preset(name)
    graph = task_graph(family, size, ccr, cluster, seed)
    yield f"{graph.name} ({name})", Problem(graph, cluster)


def measured(problem: Problem) -> dict:
  """Results of `run_holdout.alone`, annealing and the bound."""
  for strategy in ("auto", *classical(problem)):
    warm_up(strategy, problem.cluster.has_message_costs)
  found = run_holdout.alone(problem, _POLICY.value, _SECONDS.value)
  annealed = get_placer("annealing").place(
    problem, Simulator(problem), Budget(_SECONDS.value), 0
  )
  found["annealing"] = {"step_time_us": annealed.evaluation.step_time_us}
  found["bound_us"] = lower_bound(problem).us
  return found


def table(found: Mapping[str, dict]) -> str:
  """Markdown: ratios of step times over the best one-shot placer."""
  heads = ["graph", "ops", "best one-shot, ms", "policy / one-shot"]
  heads += ["random changes", "annealing", "bound", "samples"]
  lines = []
  ratios: list[list[float]] = [[], [], [], []]
  for label, row in found.items():
    times_us = {
      name: shot["step_time_us"]
      for name, shot in row["one_shot"].items()
      if "step_time_us" in shot
    }
    name = min(times_us, key=lambda n: times_us[n])
    others = [row[key]["step_time_us"] for key in ("policy", "changes")]
    others += [row["annealing"]["step_time_us"], row["bound_us"]]
    for over, us in zip(ratios, others, strict=True):
      over.append(us / times_us[name])
    cells = [label, f"{row['ops']:,}", f"{times_us[name] / 1e3:.2f} {name}"]
    cells += [f"{over[-1]:.3f}" for over in ratios]
    lines.append([*cells, f"{row['policy']['evaluations']:,}"])
  means = [f"{report.geometric_mean(over):.3f}" for over in ratios]
  return report.markdown(
    heads, [*lines, ["*geometric mean*", "", "", *means, ""]]
  )


if __name__ == "__main__":
  OPTIONS.run(main)
