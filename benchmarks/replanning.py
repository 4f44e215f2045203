"""A step has changed: how fast is there a new placement, and how good is it?

Of each graph an old plan is made by `auto`. Then a device is lost, a link gets
ten times slower, or the batch is doubled, and `auto` searches for some seconds
from the old plan (as `init_placement` does), with the learned policy and
without it, and from nothing, without it. Seconds are of everything from the
graph in memory on, on one core; TensorFlow is loaded before. The policy is
asked about steps in microbatches alone. A batch is doubled on paper: outputs
of twice the bytes, and twice the time of each op that takes 20 us or more. Each
row is saved as soon as it is there. Writes JSON and a table in Markdown.

  python benchmarks/replanning.py
  python benchmarks/replanning.py --graphs=g.json.gz --on=v100x4 --seconds=1
"""

import dataclasses
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import saved_rows
import split_step
import synthetic

from tfplace import bounds, placers
from tfplace.bin import cli
from tfplace.core import Cluster, Evaluation, OpGraph, Placement, Problem
from tfplace.core.presets import cluster_preset
from tfplace.core.protocols import Budget
from tfplace.extraction.microbatches import SplitConfig
from tfplace.formats import load_graph
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.registry import ASKED
from tfplace.placers.replan import carried_over
from tfplace.plan import graph_cache
from tfplace.simulate import Simulator

HERE = pathlib.Path(__file__).parent
SLOWER = 10.0
LONG_US = 20.0  # of an op whose time grows with the batch
LOST = 1  # of the devices of the first one's kind
_GRAPHS = flags.DEFINE_list(
  "graphs",
  ["synthetic/50000", "gpt_medium/8"],
  "synthetic/OPS, MODEL/MICROBATCHES of trained_models.py, or a graph file.",
)
_ON = flags.DEFINE_string("on", "v100x4", "Cluster preset.")
_OLD_S = flags.DEFINE_float("old_s", 60.0, "Seconds for the old plan.")
_SECONDS = flags.DEFINE_list("seconds", ["1", "3", "10"], "Of each search.")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1"], "Seeds of the searches.")
_RESULT = flags.DEFINE_string(
  "result", str(HERE / "results" / "replanning.json"), "JSON file to write."
)


def device_lost(graph: OpGraph, cluster: Cluster) -> Problem:
  """Without the second device of the first one's kind."""
  kind = cluster.devices[0].kind
  gone = [d.name for d in cluster.devices if d.kind == kind][LOST]
  devices = tuple(d for d in cluster.devices if d.name != gone)
  links = tuple(k for k in cluster.links if gone not in (k.src, k.dst))
  return Problem(
    graph, dataclasses.replace(cluster, devices=devices, links=links)
  )


def link_slower(graph: OpGraph, cluster: Cluster) -> Problem:
  """Both ways between the first two devices."""
  ends = {device.name for device in cluster.devices[:2]}
  links = tuple(
    dataclasses.replace(
      link, bandwidth_bytes_per_us=link.bandwidth_bytes_per_us / SLOWER
    )
    if {link.src, link.dst} == ends
    else link
    for link in cluster.links
  )
  return Problem(graph, dataclasses.replace(cluster, links=links))


def batch_doubled(graph: OpGraph, cluster: Cluster) -> Problem:
  """Outputs of twice the bytes; twice the time where it is long."""
  time_us = {
    kind: np.where(us >= LONG_US, 2 * us, us)
    for kind, us in graph.time_us.items()
  }
  changed = dataclasses.replace(
    graph, time_us=time_us, output_bytes=2 * graph.output_bytes
  )
  return Problem(changed, cluster)


CHANGES: dict[str, Callable[[OpGraph, Cluster], Problem]] = {
  "device lost": device_lost,
  "link slower": link_slower,
  "batch doubled": batch_doubled,
}


class Clocked:
  """A simulator that notes when it first saw a placement that fits.

  Attributes:
    first: seconds and step time, us, of that placement.
  """

  def __init__(self, problem: Problem) -> None:
    self._began = time.perf_counter()
    bounds.check_memory(problem)
    self._simulator = Simulator(problem)
    self.first = (math.inf, math.inf)

  def evaluate(self, placements: Sequence[Placement]) -> list[Evaluation]:
    """As the simulator does."""
    found = self._simulator.evaluate(placements)
    for evaluation in found:
      if evaluation.feasible and self.first[0] == math.inf:
        seconds = time.perf_counter() - self._began
        self.first = (seconds, evaluation.step_time_us)
    return found


def read_graph(name: str, on: str) -> OpGraph:
  """The graph that `--graphs` means by a name."""
  kind, _, count = name.rpartition("/")
  if kind == "synthetic":
    return synthetic.synthetic_graph(int(count), seed=0)
  if pathlib.Path(name).exists():
    return load_graph(name)
  graphs = split_step.Graphs(kind, [on], graph_cache.default_directory())
  return graphs.problem(SplitConfig(int(count)), on).graph


def searched(
  problem: Problem,
  seconds: float,
  seed: int,
  old: Placement | None,
  learned: Sequence[str],
) -> dict:
  """One search, on a problem of which nothing is known yet."""
  problem = Problem(dataclasses.replace(problem.graph), problem.cluster)
  began = time.perf_counter()
  start = None if old is None else carried_over(problem, old.assignments)
  clocked = Clocked(problem)
  left_s = seconds - (time.perf_counter() - began)
  placer = AutoPlacer(learned, start=start)
  found = placer.place(problem, clocked, Budget(max(0.0, left_s)), seed)
  return {
    "step_time_us": found.evaluation.step_time_us,
    "seconds": time.perf_counter() - began,
    "evaluations": found.evaluations,
    "first_s": clocked.first[0],
    "first_us": clocked.first[1],
  }


def measure(problem: Problem, old: Placement, seconds: float) -> dict:
  """All arms, with each seed."""
  return {
    arm: [
      searched(problem, seconds, int(seed), start, learned)
      for seed in _SEEDS.value
    ]
    for arm, (start, learned) in {
      "old": (old, ()),
      "policy": (old, ASKED),
      "nothing": (None, ()),
    }.items()
  }


def median(found: list[dict], key: str) -> float:
  """Of the seeds."""
  return statistics.median(row[key] for row in found)


def table(rows: dict[tuple[str, str], dict[str, dict]]) -> list[str]:
  """Markdown: per graph and change, ms after each number of seconds."""
  heads = ["graph", "change", "first placement, s", "ms"]
  for seconds in _SECONDS.value:
    heads += [f"{seconds} s: nothing", "old plan", "and policy"]
    heads += ["nothing / old", "old / policy"]
  lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
  for (graph, change), by_seconds in rows.items():
    # Seeds and seconds do not matter for what is evaluated first.
    first = [row for found in by_seconds.values() for row in found["old"]]
    cells = [graph, change, f"{median(first, 'first_s'):.2f}"]
    cells.append(f"{median(first, 'first_us') / 1e3:.1f}")
    for found in by_seconds.values():
      nothing, old, policy = (
        median(found[arm], "step_time_us")
        for arm in ("nothing", "old", "policy")
      )
      cells += [f"{us / 1e3:.1f}" for us in (nothing, old, policy)]
      cells += [f"{nothing / old:.2f}", f"{old / policy:.3f}"]
    lines.append("| " + " | ".join(cells) + " |")
  return lines


def main(argv: list[str]) -> None:
  del argv
  saved_rows.pin_to_cores(1)
  saved = saved_rows.SavedRows(
    _RESULT.value,
    {"on": _ON.value, "old_s": _OLD_S.value, "seeds": _SEEDS.value},
  )
  cluster = cluster_preset(_ON.value)
  cli.load_tensorflow()
  placers.warm_up("auto", cluster.has_message_costs, True)
  rows: dict[tuple[str, str], dict[str, dict]] = {}
  for name in _GRAPHS.value:
    graph, old = read_graph(name, _ON.value), None
    for change, make in CHANGES.items():
      rows[name, change] = {}
      for seconds in _SECONDS.value:

        def row(make=make, seconds=seconds, graph=graph) -> dict:
          nonlocal old
          if old is None:
            before = Problem(graph, cluster)
            old = placers.place(before, budget_s=_OLD_S.value).placement
          return measure(make(graph, cluster), old, float(seconds))

        rows[name, change][seconds] = saved.row(
          f"{name}/{change}/{seconds}", row
        )
  report = "\n".join(table(rows)) + "\n"
  pathlib.Path(_RESULT.value).with_suffix(".md").write_text(report)
  print(report)


if __name__ == "__main__":
  app.run(main)
