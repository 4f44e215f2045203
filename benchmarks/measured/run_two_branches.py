"""Two independent branches on local workers: predicted and measured steps.

A Keras model of two towers is traced as `fit` trains it; its ops are timed on
one worker, and the links by transfers. Five placements are then predicted by
the simulator and run for real, in rounds, so that a busy moment of the host
hits them all. Prints a table, the rank correlation, and the speed-up of the
best placement over one worker; writes JSON and a plot.

  python -m benchmarks.measured.run_two_branches
"""

import math
import pathlib
import statistics

import keras
import numpy as np
from absl import app, flags
from matplotlib.figure import Figure
from rich import console, table
from scipy import stats

from tfplace import measure, placers
from tfplace.core import Problem
from tfplace.errors import MeasurementError
from tfplace.extraction import TracedStep, trace_keras
from tfplace.formats.cluster import cluster_to_json
from tfplace.formats.json_file import write_json
from tfplace.plan import live_step, sources
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parents[1]
_KIND = flags.DEFINE_enum("towers", "conv", ["conv", "dense"], "Layers.")
_DEPTH = flags.DEFINE_integer("depth", 4, "Layers of each tower.")
_WIDTH = flags.DEFINE_integer("width", 0, "Units or filters; 0: 768 or 32.")
_BATCH = flags.DEFINE_integer("batch_size", 0, "Examples; 0: 256 or 16.")
_WORKERS = flags.DEFINE_integer("workers", 2, "Worker processes.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Times each placement is run.")
_STEPS = flags.DEFINE_integer("steps", 8, "Timed steps of each run.")
_BUDGET_S = flags.DEFINE_float("budget_s", 10.0, "Seconds of the search.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the search and the random one.")
_OUT = flags.DEFINE_string(
  "out", str(HERE / "results" / "two_branches.json"), "JSON file to write."
)
TOWER = "tower{}_layer{}"


def two_towers() -> keras.Model:
  """Two towers on one input, joined by a small head; compiled, no XLA."""
  dense = _KIND.value == "dense"
  width = _WIDTH.value or (768 if dense else 32)
  inputs = keras.Input((width,) if dense else (32, 32, 16))
  ends = []
  for tower in range(2):
    x = inputs
    for layer in range(_DEPTH.value):
      name = TOWER.format(tower, layer)
      x = (
        keras.layers.Dense(width, activation="relu", name=name)(x)
        if dense
        else keras.layers.Conv2D(
          width, 3, padding="same", activation="relu", name=name
        )(x)
      )
    if not dense:
      x = keras.layers.GlobalAveragePooling2D(name=f"tower{tower}_pool")(x)
    ends.append(x)
  outputs = keras.layers.Dense(10)(keras.layers.Concatenate()(ends))
  model = keras.Model(inputs, outputs)
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
  return model


def by_tower(problem: Problem) -> np.ndarray:
  """[num_ops]: the second tower, its gradients and updates on device 1.

  Ops without a tower's name go with their inputs, where those agree.
  """
  graph = problem.graph
  tower = np.full(graph.num_ops, -1)
  offsets, edges = graph.in_csr
  for op in graph.topological_order:
    named = [t for t in (0, 1) if f"tower{t}_" in graph.names[op]]
    before = graph.edge_src[edges[offsets[op] : offsets[op + 1]]]
    known = {int(tower[b]) for b in before} - {-1}
    found = set(named) or known
    tower[op] = found.pop() if len(found) == 1 else -1
  groups = np.zeros(problem.num_groups, np.int32)
  np.maximum.at(groups, problem.group_of, np.maximum(tower, 0))
  return groups[problem.group_of]


def placements(problem: Problem) -> dict[str, np.ndarray]:
  """Five placements that differ in kind."""
  rng = np.random.default_rng(_SEED.value)
  devices = problem.cluster.num_devices
  scattered = rng.integers(devices, size=problem.num_groups, dtype=np.int32)
  found = placers.place(problem, "auto", _BUDGET_S.value, _SEED.value)
  topological = placers.place(problem, "m_topo", 5.0, _SEED.value)
  return {
    "one worker": np.zeros(problem.graph.num_ops, np.int32),
    "by tower": by_tower(problem),
    "auto": found.placement.devices,
    "m_topo": topological.placement.devices,
    "random": scattered[problem.group_of],
  }


def profiled(live: measure.OpenCluster, traced: TracedStep) -> Problem:
  """The problem with measured op times, overheads and links."""
  graph = sources.op_graph(traced, live.cluster)
  estimated = Problem(graph, live.cluster)
  return live_step.LiveStep(live, traced).profiled(estimated)


def measured(
  live: measure.OpenCluster,
  problem: Problem,
  traced: TracedStep,
  rows: dict[str, np.ndarray],
) -> dict[str, list[float]]:
  """Placement -> the steps of all rounds, microseconds."""
  harness = live.harness(problem, traced, steps=_STEPS.value, traced_steps=0)
  times: dict[str, list[float]] = {name: [] for name in rows}
  for _ in range(_ROUNDS.value):
    for name, row in rows.items():
      evaluation = harness.evaluate(row[None])[0]
      if "error" in evaluation.extra:
        raise MeasurementError(f"{name}: {evaluation.extra['error']}")
      times[name].extend(evaluation.extra["step_times_us"])
  return times


def compared() -> dict:
  """Runs everything; the content of the JSON file."""
  traced = trace_keras(
    two_towers(), batch_size=_BATCH.value or _default_batch()
  )
  with measure.open_cluster(f"workers:{_WORKERS.value}") as live:
    problem = profiled(live, traced)
    rows = placements(problem)
    predicted = Simulator(problem).evaluate(np.stack(list(rows.values())))
    times = measured(live, problem, traced, rows)
  return _report(problem, dict(zip(rows, predicted, strict=True)), times)


def _default_batch() -> int:
  return 256 if _KIND.value == "dense" else 16


def _report(problem: Problem, predicted: dict, times: dict) -> dict:
  result = {
    name: {
      "predicted_us": predicted[name].step_time_us,
      "measured_us": statistics.median(times[name]),
      "quartiles_us": [float(q) for q in np.percentile(times[name], [25, 75])],
      "bytes_moved": predicted[name].bytes_moved,
    }
    for name in times
  }
  one = result["one worker"]["measured_us"]
  best = min(result, key=lambda name: result[name]["measured_us"])
  rank = stats.spearmanr(
    [r["predicted_us"] for r in result.values()],
    [r["measured_us"] for r in result.values()],
  )
  return {
    "towers": _KIND.value,
    "ops": problem.graph.num_ops,
    "op_overhead_us": problem.cluster.devices[0].op_overhead_us,
    "lower_bound_us": problem.lower_bound_us,
    "links": cluster_to_json(problem.cluster)["links"],
    "placements": result,
    "rank_correlation": float(rank.statistic),
    "best": best,
    "speed_up": one / result[best]["measured_us"],
  }


def _print(report: dict) -> None:
  shown = table.Table(title=f"Two {report['towers']} towers, workers:2")
  columns = (
    "placement",
    "predicted ms",
    "measured ms",
    "quartiles",
    "moved MB",
  )
  for column in (*columns, "speed-up"):
    shown.add_column(
      column, justify="left" if column == columns[0] else "right"
    )
  one = report["placements"]["one worker"]["measured_us"]
  for name, row in report["placements"].items():
    low, high = (q / 1e3 for q in row["quartiles_us"])
    shown.add_row(
      name,
      f"{row['predicted_us'] / 1e3:.2f}",
      f"{row['measured_us'] / 1e3:.2f}",
      f"{low:.2f} to {high:.2f}",
      f"{row['bytes_moved'] / 1e6:.2f}",
      f"{one / row['measured_us']:.2f}",
    )
  console.Console().print(shown)
  print(
    f"rank correlation {report['rank_correlation']:.2f}; best"
    f" {report['best']!r}: {report['speed_up']:.2f}x over one worker"
  )


def _plot(report: dict, path: pathlib.Path) -> None:
  figure = Figure(figsize=(5, 4), layout="constrained")
  axes = figure.subplots()
  rows = report["placements"]
  top = max(max(r["predicted_us"], r["measured_us"]) for r in rows.values())
  axes.plot([0, top / 1e3], [0, top / 1e3], color="0.8", zorder=0)
  for name, row in rows.items():
    x, y = row["predicted_us"] / 1e3, row["measured_us"] / 1e3
    low, high = (q / 1e3 for q in row["quartiles_us"])
    axes.errorbar(x, y, yerr=[[y - low], [high - y]], fmt="o", label=name)
  axes.set_xlabel("predicted step time (ms)")
  axes.set_ylabel("measured step time (ms)")
  axes.set_xlim(0, math.ceil(top / 1e3 * 1.05))
  axes.legend()
  figure.savefig(path, dpi=150)


def main(argv: list[str]) -> None:
  del argv
  report = compared()
  _print(report)
  out = pathlib.Path(_OUT.value)
  out.parent.mkdir(parents=True, exist_ok=True)
  write_json(out, report)
  _plot(report, out.with_suffix(".png"))
  print(f"wrote {out} and {out.with_suffix('.png').name}")


if __name__ == "__main__":
  app.run(main)
