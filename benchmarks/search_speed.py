"""How many placements a second the search evaluates, by size of the graph.

For synthetic graphs with Inception-V3's proportions: full simulations of
random placements in a batch on all cores, and the evaluations of the
annealing search (which stops a simulation once the placement cannot be
accepted), each size in a process of its own for its peak memory. Prints a
table and writes JSON.

  python benchmarks/search_speed.py
"""

import concurrent.futures
import multiprocessing
import pathlib
import resource
import sys
import time

import numpy as np
from absl import app, flags
from rich import console, table

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import simulator_speed

from tfplace import placers
from tfplace.graph import Problem
from tfplace.graph.json_file import write_json
from tfplace.graph.presets import cluster_preset
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parent
BATCH = 64
_OPS = flags.DEFINE_list("ops", [1000, 10000, 50000, 100000], "Graph sizes.")
_SECONDS = flags.DEFINE_float("seconds", 20.0, "Of each search.")
_RESULT = flags.DEFINE_string(
  "result", str(HERE / "results" / "search_speed.json"), "JSON file to write."
)


def row(num_ops: int, seconds: float) -> dict:
  """The rates for one size; run in a fresh process."""
  graph = simulator_speed.synthetic_graph(num_ops, seed=0)
  problem = Problem(graph, cluster_preset("p100x4"))
  simulator = Simulator(problem)
  rows = np.stack(
    [simulator_speed.random_placement(problem, seed) for seed in range(BATCH)]
  )
  simulator.run(rows)  # compiles
  began = time.perf_counter()
  simulator.run(rows)
  batch_s = time.perf_counter() - began
  found = placers.place(problem, "annealing", seconds, seed=0)
  peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {
    "ops": graph.num_ops,
    "edges": graph.num_edges,
    "batch_evaluations_per_second": BATCH / batch_s,
    "search_evaluations_per_second": found.evaluations / found.seconds,
    "search_evaluations": found.evaluations,
    "peak_memory_mib": peak_kib / 1024,
  }


def main(argv: list[str]) -> None:
  del argv
  context = multiprocessing.get_context("spawn")
  rows = []
  for size in _OPS.value:
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
      rows.append(pool.submit(row, int(size), _SECONDS.value).result())
  shown = table.Table(title="Placements evaluated per second")
  for column in ("ops", "edges", "batch", "search", "peak MiB"):
    shown.add_column(column, justify="right")
  for r in rows:
    shown.add_row(
      f"{r['ops']:,}",
      f"{r['edges']:,}",
      f"{r['batch_evaluations_per_second']:,.0f}",
      f"{r['search_evaluations_per_second']:,.0f}",
      f"{r['peak_memory_mib']:,.0f}",
    )
  console.Console().print(shown)
  write_json(_RESULT.value, {"seconds": _SECONDS.value, "rows": rows})


if __name__ == "__main__":
  app.run(main)
