"""Places changed steps anew, from the old plan and from nothing.

`auto` makes the old plan of each graph. Then a device is lost, a link becomes
ten times slower, or the batch is doubled, and `auto` searches for some seconds:
from the old plan (like `init_placement`) with and without the learned policy,
and from nothing without it. Seconds count from the graph in memory on, on one
core, with TensorFlow loaded. A doubled batch is not extracted again: outputs
have twice the bytes, and each op of 20 us or more takes twice the time. Each
row is saved as soon as it is done. Writes JSON and a Markdown table.

  python -m benchmarks.placement.run_replanning
  python -m benchmarks.placement.run_replanning --graphs=g.json.gz \\
      --on=v100x4 --seconds=1 \\
    --out=g_changed.json
"""

import dataclasses
import functools
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from absl import flags

from benchmarks.lib import report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.microbatches import run_models
from benchmarks.models import reference, synthetic
from tfplace import bounds, placers
from tfplace.bin import cli
from tfplace.core import Cluster, Evaluation, OpGraph, Placement, Problem
from tfplace.core.budget import Budget
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.presets import cluster_preset
from tfplace.formats import load_graph
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.registry import LEARNED_IN_AUTO
from tfplace.placers.replan import carried_over
from tfplace.plan import graph_cache
from tfplace.simulate import Simulator

SLOWER = 10.0
LONG_US = 20.0  # of an op whose time grows with the batch
LOST = 1  # of the devices of the first one's kind


OPTIONS = Options("run_replanning", __doc__)
OPTIONS.add("old_s", 60.0, "Seconds for the old plan.", least=0)
OPTIONS.add(
  "graphs",
  ["synthetic/50000", "gpt_medium/8"],
  "synthetic/OPS, MODEL/MICROBATCHES of models/reference.py, or files.",
)
OPTIONS.add("seconds", ["1", "3", "10"], "Seconds of each search.")
OPTIONS.add("seeds", ["0", "1"], "Seeds of the searches.")
OPTIONS.add("on", "v100x4", "Cluster preset.")
OPTIONS.out("replanning.json")


def main(values: flags.FlagValues) -> None:
  """Measures what is missing; saves after each row."""
  cli.check_writable(values.out)
  cluster = cluster_preset(values.on)
  graphs = [(name, reader(name, values.on)) for name in values.graphs]
  saved_rows.pin_to_cores(1)
  settings = {name: values[name].value for name in ("on", "old_s", "seeds")}
  saved = saved_rows.SavedRows(values.out, settings)
  cli.load_tensorflow()
  placers.warm_up("auto", cluster.has_message_costs)
  rows: dict[tuple[str, str], dict[str, dict]] = {}
  for name, read in graphs:
    step = Step(read, cluster, values.old_s)
    for change in CHANGES:
      rows[name, change] = {
        seconds: saved.row(
          f"{name}/{change}/{seconds}",
          lambda s=seconds, c=change, step=step: measured(
            step, c, float(s), [int(seed) for seed in values.seeds]
          ),
        )
        for seconds in values.seconds
      }
  report.write(values.out, table(rows))


def reader(name: str, on: str) -> Callable[[], OpGraph]:
  """Returns a function that reads or makes a graph named in `--graphs`.

  Raises:
    UsageError: there is no such graph.
  """
  kind, _, count = name.rpartition("/")
  if pathlib.Path(name).is_file():
    return lambda: load_graph(name)
  if kind == "synthetic" and count.isdigit():
    return lambda: synthetic.synthetic_graph(int(count), seed=0)
  if kind in reference.MODELS and count.isdigit():
    graphs = run_models.Graphs(kind, [on], graph_cache.default_directory())
    return lambda: graphs.problem(MicrobatchConfig(int(count)), on).graph
  raise cli.UsageError(
    f"--graphs: {name!r} is no file, nor synthetic/OPS, nor"
    f" MODEL/MICROBATCHES with a model of {', '.join(reference.MODELS)}"
  )


class Step:
  """A graph with its old plan; both are made when a row is missing.

  Attributes:
    cluster: before the change.
  """

  def __init__(
    self, read: Callable[[], OpGraph], cluster: Cluster, old_s: float
  ) -> None:
    self.cluster = cluster
    self._read, self._old_s = read, old_s

  @functools.cached_property
  def graph(self) -> OpGraph:
    return self._read()

  @functools.cached_property
  def old(self) -> Placement:
    """Places the problem with `auto` before the change."""
    problem = Problem(self.graph, self.cluster)
    return placers.place(problem, budget_s=self._old_s).placement


def device_lost(graph: OpGraph, cluster: Cluster) -> Problem:
  """Removes the second device of the first device's kind."""
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
    """Evaluates with the simulator; notes the first feasible step time."""
    found = self._simulator.evaluate(placements)
    for evaluation in found:
      if evaluation.feasible and self.first[0] == math.inf:
        seconds = time.perf_counter() - self._began
        self.first = (seconds, evaluation.step_time_us)
    return found


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


def measured(
  step: Step, change: str, seconds: float, seeds: Sequence[int]
) -> dict:
  """All arms, with each seed."""
  arms: dict[str, tuple[Placement | None, Sequence[str]]] = {
    "old": (step.old, ()),
    "policy": (step.old, LEARNED_IN_AUTO),
    "nothing": (None, ()),
  }
  problem = CHANGES[change](step.graph, step.cluster)
  return {
    arm: [searched(problem, seconds, seed, start, asked) for seed in seeds]
    for arm, (start, asked) in arms.items()
  }


def median(found: list[dict], key: str) -> float:
  """Median of the seeds."""
  return statistics.median(row[key] for row in found)


def table(rows: dict[tuple[str, str], dict[str, dict]]) -> str:
  """Markdown: per graph and change, ms after each number of seconds."""
  heads = ["graph", "change", "first placement, s", "ms"]
  for seconds in next(iter(rows.values())):
    heads += [f"{seconds} s: nothing", "old plan", "and policy"]
    heads += ["nothing / old", "old / policy"]
  lines = []
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
    lines.append(cells)
  return report.markdown(heads, lines)


if __name__ == "__main__":
  OPTIONS.run(main)
