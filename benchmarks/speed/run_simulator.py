"""The simulator's speed on one core: ops plus edges per second.

Simulates the training graph of a model (or `--graph`), with memory accounting,
in a contiguous and a random placement, then synthetic graphs of growing size.
The plain-Python reference of the tests is quadratic and therefore timed on a
small graph. Prints tables, writes JSON and a plot.

  python -m benchmarks.speed.run_simulator
"""

import pathlib
import statistics
import time
from collections.abc import Callable

import numpy as np
from absl import flags
from matplotlib.figure import Figure
from rich import console, table

from benchmarks.lib.command import Options
from benchmarks.models import synthetic
from tfplace.core import OpGraph, Problem
from tfplace.core.presets import cluster_preset
from tfplace.formats import load_graph
from tfplace.formats.json_file import write_json
from tfplace.plan import graph_cache, sources
from tfplace.simulate import Simulator

OPTIONS = Options("run_simulator", __doc__)
_MODEL = OPTIONS.add("model", "inception_v3", "Zoo model.")
_GRAPH = OPTIONS.add("graph", None, "Graph file, in place of a model.")
_CLUSTER = OPTIONS.add("cluster", "p100x4", "Cluster preset.")
_SIZES = OPTIONS.add(
  "sizes", [1000, 3000, 10000, 30000, 100000], "Ops of synthetic graphs."
)
_REFERENCE_OPS = OPTIONS.add(
  "reference_ops", 300, "Ops of the graph that the reference is timed on."
)
_REPEATS = OPTIONS.add("repeats", 15, "Timings; the median counts.")
_SEED = OPTIONS.add("seed", 0, "Seed of random graphs and placements.")
_OUT = OPTIONS.out("simulator_speed.json")
MIN_TIMING_S = 0.05  # repeats a simulation until a timing takes so long


def seconds_each(run: Callable[[int], object]) -> float:
  """Median seconds of one simulation; `run(n)` does n of them."""
  run(1)  # compiles
  count = 1
  while (taken := _timed(run, count)) < MIN_TIMING_S:
    count = max(2 * count, int(count * 1.2 * MIN_TIMING_S / max(taken, 1e-9)))
  timings = [_timed(run, count) / count for _ in range(_REPEATS.value)]
  return statistics.median(timings)


def _timed(run: Callable[[int], object], count: int) -> float:
  start = time.thread_time()  # of this core: others' work does not count
  run(count)
  return time.thread_time() - start


def engine_row(problem: Problem, name: str, devices: np.ndarray) -> dict:
  simulator = Simulator(problem, num_threads=1)
  (evaluation,) = simulator.evaluate(devices[np.newaxis])

  def run(count: int) -> None:
    simulator.run(np.broadcast_to(devices, (count, len(devices))))

  return _row(problem, name, seconds_each(run), evaluation.step_time_us)


def reference_row(problem: Problem, name: str, devices: np.ndarray) -> dict:
  from tests.testing.reference import reference_step

  start = time.thread_time()
  step = reference_step(problem, devices)
  seconds = time.thread_time() - start
  (evaluation,) = Simulator(problem).evaluate(devices[np.newaxis])
  if step.step_time_us != evaluation.step_time_us:
    raise ValueError(f"{problem.graph.name}: engine and reference differ")
  return _row(problem, name, seconds, step.step_time_us)


def _row(
  problem: Problem, placement: str, seconds: float, step_time_us: float
) -> dict:
  size = problem.graph.num_ops + problem.graph.num_edges
  return {
    "graph": problem.graph.name,
    "ops": problem.graph.num_ops,
    "edges": problem.graph.num_edges,
    "devices": problem.cluster.num_devices,
    "placement": placement,
    "step_time_us": step_time_us,
    "milliseconds": seconds * 1e3,
    "millions_per_second": size / seconds / 1e6,
  }


def engine_rows(graph: OpGraph) -> list[dict]:
  problem = Problem(graph, cluster_preset(_CLUSTER.value))
  return [
    engine_row(problem, "contiguous", synthetic.contiguous(problem)),
    engine_row(
      problem, "random", synthetic.random_placement(problem, _SEED.value)
    ),
  ]


def print_rows(title: str, rows: list[dict]) -> None:
  shown = table.Table(title=title)
  for name in ("graph", "placement"):
    shown.add_column(name, no_wrap=True)
  for name in ("ops", "edges", "ms", "million/s"):
    shown.add_column(name, justify="right", no_wrap=True)
  for row in rows:
    cells = (row[key] for key in ("graph", "placement", "ops", "edges"))
    shown.add_row(
      *map(str, cells),
      f"{row['milliseconds']:.3f}",
      f"{row['millions_per_second']:.3g}",
    )
  console.Console().print(shown)


def plot(rows: list[dict], path: pathlib.Path) -> None:
  figure = Figure(figsize=(6, 4), layout="constrained")
  axes = figure.subplots()
  for placement in ("contiguous", "random"):
    chosen = [row for row in rows if row["placement"] == placement]
    sizes = [row["ops"] + row["edges"] for row in chosen]
    times = [row["milliseconds"] for row in chosen]
    axes.loglog(sizes, times, "o-", label=placement)
  axes.set_xlabel("ops + edges")
  axes.set_ylabel("milliseconds per simulated step, one core")
  axes.grid(alpha=0.3, which="both")
  axes.legend()
  figure.savefig(path, dpi=120)


def model_graph() -> OpGraph:
  if _GRAPH.value:
    return load_graph(_GRAPH.value)
  return sources.extract(
    _MODEL.value, _CLUSTER.value, cache_dir=graph_cache.default_directory()
  )


def main(_: flags.FlagValues) -> None:
  model = engine_rows(model_graph())
  print_rows(f"{_CLUSTER.value}, one core, ops + edges per second", model)
  growth: list[dict] = []
  for size in map(int, _SIZES.value):
    growth += engine_rows(synthetic.synthetic_graph(size, _SEED.value))
  print_rows("growth", growth)
  small = synthetic.synthetic_graph(_REFERENCE_OPS.value, _SEED.value)
  problem = Problem(small, cluster_preset(_CLUSTER.value))
  reference = reference_row(
    problem, "contiguous", synthetic.contiguous(problem)
  )
  print_rows("plain-Python reference", [reference])
  out = pathlib.Path(_OUT.value)
  out.parent.mkdir(parents=True, exist_ok=True)
  data = {"model": model, "growth": growth, "reference": [reference]}
  write_json(out, data)
  plot(growth, out.with_suffix(".png"))


if __name__ == "__main__":
  OPTIONS.run(main)
