"""Speed of the simulator and of the search, on one core.

For synthetic graphs with Inception-V3's proportions: simulated ops and edges a
second, with memory accounting, of equal shares of the work and of random
placements; and placements a second that the search evaluates (it stops a
simulation once the placement cannot be accepted), with its set-up and its peak
memory. Each size runs in a process of its own.

  python -m benchmarks.run_speed
"""

import concurrent.futures
import multiprocessing
import resource
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from tfplace.graph import OpGraph, OpSpec, Problem, build_graph
from tfplace.hardware.presets import cluster_preset
from tfplace.placers import Budget
from tfplace.placers.compilation import warm_up
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.search import Search
from tfplace.simulate import Simulator

_LEAST_S = 0.5  # of the simulations of one kind of placement
_WARM_OPS = 100

OPTIONS = Options("run_speed", __doc__)
OPTIONS.add("ops", ["1000", "10000", "50000", "100000"], "Sizes of graphs.")
OPTIONS.add("cluster", "p100x8", "Cluster preset.")
OPTIONS.add_search(30.0, "speed.json")


def main(values: flags.FlagValues) -> None:
  """Measures missing sizes, each in a process of its own."""
  sizes = lib.numbers("ops", values.ops, 1)
  seeds = lib.numbers("seeds", values.seeds)
  cluster_preset(values.cluster)
  settings = {"cluster": values.cluster, "budget_s": values.budget_s}
  saved = lib.Rows(
    values.out, settings, seeds=seeds[:1], costs=None, policy=None
  )

  def in_a_process(num_ops: int) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, spawn) as pool:
      return pool.submit(
        measured, num_ops, values.cluster, values.budget_s, seeds[0]
      ).result()

  for size in sizes:
    saved.row(str(size), lambda n=size: in_a_process(n))
  print(tables(saved.found)["speed"])


def measured(
  num_ops: int, cluster: str, seconds: float, seed: int
) -> dict[str, Any]:
  """The rates of one size; runs in a fresh process."""
  lib.pin_to_cores(1)
  warm_up("annealing", cluster_preset(cluster).has_message_costs)
  _rates(_WARM_OPS, cluster, 0.2, seed)  # compiles the rest
  found = _rates(num_ops, cluster, seconds, seed)
  peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return {**found, "peak_memory_mib": peak_kib / 1024}


def _rates(
  num_ops: int, cluster: str, seconds: float, seed: int
) -> dict[str, Any]:
  graph = synthetic_graph(num_ops, seed)
  problem = Problem(graph, cluster_preset(cluster))
  shares = contiguous(problem)
  began = time.process_time()  # others' work does not count
  groups = GroupGraph(problem)
  first = groups.contract(shares)
  search = Search(groups, seed, chains=1, like=first)
  ready = time.process_time()
  search.run([first], Budget(seconds))
  taken = time.process_time() - ready
  return {
    "ops": graph.num_ops,
    "edges": graph.num_edges,
    "contiguous": _simulated_per_second(problem, shares),
    "random": _simulated_per_second(problem, random_placement(problem, seed)),
    "search_setup_s": ready - began,
    "search_per_second": search.evaluations / taken,
  }


def _simulated_per_second(problem: Problem, devices: np.ndarray) -> float:
  """Ops and edges a second."""
  simulator = Simulator(problem, num_threads=1)
  simulator.run(devices[None])  # packs its tables
  count, began = 0, time.process_time()
  while time.process_time() - began < _LEAST_S:
    simulator.run(np.broadcast_to(devices, (16, len(devices))))
    count += 16
  size = problem.graph.num_ops + problem.graph.num_edges
  return count * size / (time.process_time() - began)


def synthetic_graph(num_ops: int, seed: int) -> OpGraph:
  """A graph with Inception-V3's proportions: 1.4 edges per op, 7% without
  time, most edges short, some as long as from a layer to its gradient.
  """
  rng = np.random.default_rng(seed)
  ops = []
  for i in range(num_ops):
    time_us = 0.0 if rng.random() < 0.07 else rng.lognormal(2.0, 1.5)
    sizes = rng.lognormal(9.0, 3.0, 1).round()
    kinds = {"GPU": time_us, "CPU": 10 * time_us}
    ops.append(OpSpec(f"op{i}", "Op", kinds, sizes, temp_bytes=64.0))
  edges = set()
  for i in range(1, num_ops):
    for _ in range(1 + rng.binomial(2, 0.2)):
      far = rng.random() < 0.15
      back = rng.integers(1, i + 1) if far else rng.geometric(0.2)
      edges.add((max(0, i - int(back)), 0, i))
  return build_graph(f"synthetic_{num_ops}", ops, sorted(edges))


def contiguous(problem: Problem) -> np.ndarray:
  """[num_ops] equal shares of the time, in topological order, on the devices
  of the first one's kind."""
  order = problem.graph.topological_order
  kind = problem.cluster.devices[0].kind
  devices = [i for i, d in enumerate(problem.cluster.devices) if d.kind == kind]
  done = np.cumsum(problem.fastest_us[order])
  share = np.minimum(done / max(done[-1], 1e-9), 1 - 1e-9) * len(devices)
  result = np.empty(problem.graph.num_ops, np.int32)
  result[order] = np.array(devices, np.int32)[share.astype(int)]
  return result


def random_placement(problem: Problem, seed: int) -> np.ndarray:
  """[num_ops] any device for each op."""
  count = problem.cluster.num_devices
  rng = np.random.default_rng(seed)
  return rng.integers(0, count, problem.graph.num_ops, np.int32)


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns the rates by size."""
  lines = [
    [
      f"{row['ops']:,}",
      *(f"{row[key] / 1e6:.1f}" for key in ("contiguous", "random")),
      f"{row['search_per_second']:,.0f}",
      f"{row['peak_memory_mib']:,.0f}",
    ]
    for row in found["rows"].values()
  ]
  simulated = ("million ops+edges/s", "random placements")
  heads = ("ops", *simulated, "search, placements/s", "peak MiB")
  text = lib.markdown(heads, lines)
  return {"speed": f"{text}\n\n{lib.caption(found)}"}


if __name__ == "__main__":
  OPTIONS.run(main)
