"""Placements a second that the search evaluates, by size of the graph.

For synthetic graphs with Inception-V3's proportions, per second of one core:
the search from equal shares of the work (it stops a simulation once the
placement cannot be accepted), and beside it full simulations, of those equal
shares and of random placements. Each size runs in a process of its own for
its peak memory. Each row is printed and saved as soon as it is there; a run
that was cut off goes on.

  python -m benchmarks.speed.run_search
"""

import concurrent.futures
import multiprocessing
import resource
import time

import numpy as np
from absl import flags
from rich import console, table

from benchmarks.lib import saved_rows
from benchmarks.lib.command import Options
from benchmarks.models import synthetic
from tfplace.core import Problem
from tfplace.core.presets import cluster_preset
from tfplace.placers import Budget
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.search import Search, SearchConfig
from tfplace.simulate import Simulator

BATCH = 16
LEAST_S = 0.5
WARM_OPS = 100
OPTIONS = Options("run_search", __doc__)
_OPS = OPTIONS.add("ops", [1000, 10000, 50000, 100000], "Graph sizes.")
_ON = OPTIONS.add("on", "p100x8", "Cluster preset.")
_SECONDS = OPTIONS.add("seconds", 30.0, "Seconds of each search.")
_OUT = OPTIONS.out("search_speed.json")


def measured(num_ops: int, on: str, seconds: float) -> dict:
  """The rates for one size; run in a fresh process."""
  saved_rows.pin_to_cores(1)
  _rates(WARM_OPS, on, 0.2)  # compiles
  before_mib = _peak_mib()
  return {
    **_rates(num_ops, on, seconds),
    "peak_memory_mib": _peak_mib(),
    "peak_memory_of_100_ops_mib": before_mib,
  }


def _rates(num_ops: int, on: str, seconds: float) -> dict:
  graph = synthetic.synthetic_graph(num_ops, seed=0)
  problem = Problem(graph, cluster_preset(on))
  start = synthetic.contiguous(problem)
  random = [synthetic.random_placement(problem, i) for i in range(BATCH)]
  return {
    "ops": graph.num_ops,
    "edges": graph.num_edges,
    "full_per_second": _full_per_second(problem, [start] * BATCH),
    "random_per_second": _full_per_second(problem, random),
    **_search(problem, start, seconds),
  }


def _full_per_second(problem: Problem, placements: list[np.ndarray]) -> float:
  """Simulations to the end, for half a second at least."""
  simulator = Simulator(problem, num_threads=1)
  rows = np.stack(placements)
  simulator.run(rows[:1])  # packs its tables
  done, began = 0, time.process_time()  # others' work does not count
  while time.process_time() - began < LEAST_S:
    simulator.run(rows)
    done += len(rows)
  return done / (time.process_time() - began)


def _search(problem: Problem, start: np.ndarray, seconds: float) -> dict:
  """The search's evaluations, with what it needs before the first."""
  began = time.process_time()
  groups = GroupGraph(problem)
  first = groups.contract(start)
  search = Search(groups, 0, SearchConfig(chains=1), like=first)
  ready = time.process_time()
  search.run([first], Budget(seconds))
  taken = time.process_time() - ready
  return {
    "ready_core_seconds": ready - began,
    "search_core_seconds": taken,
    "search_evaluations": search.evaluations,
    "search_per_second": search.evaluations / taken,
  }


def _peak_mib() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_a_process(size: int) -> dict:
  """`measured` in a process of its own."""
  context = multiprocessing.get_context("spawn")
  with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
    return pool.submit(measured, size, _ON.value, _SECONDS.value).result()


def print_table(rows: list[dict]) -> None:
  title = f"{_ON.value}: placements per second of one core"
  shown = table.Table(title=title)
  heads = ("ops", "edges", "full", "full, random", "search", "peak MiB")
  for head in heads:
    shown.add_column(head, justify="right")
  for r in rows:
    rates = (r[f"{kind}_per_second"] for kind in ("full", "random", "search"))
    cells = (r["ops"], r["edges"], *rates, r["peak_memory_mib"])
    shown.add_row(*(f"{cell:,.0f}" for cell in cells))
  console.Console().print(shown)


def main(_: flags.FlagValues) -> None:
  rows = saved_rows.SavedRows(
    _OUT.value,
    {
      "cluster": _ON.value,
      "seconds": _SECONDS.value,
    },
  )
  print_table(
    [
      rows.row(f"synthetic_{size}", lambda n=int(size): in_a_process(n))
      for size in _OPS.value
    ]
  )


if __name__ == "__main__":
  OPTIONS.run(main)
