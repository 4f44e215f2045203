"""Steps of hundreds of thousands of ops: seconds, memory, evaluations.

8-layer GNMT in eight microbatches on 8 devices, and a million synthetic ops
(with Inception-V3's proportions) on 64 devices of 8 hosts. Measures how long it
takes to build the graph and to run each placer, in a process of its own so that
its peak memory is known; a placer that exceeds the limit is stopped. Each row
is printed and saved as soon as it is done, and an interrupted run resumes.
Writes JSON and a Markdown table.

  python -m benchmarks.speed.run_large_steps
  python -m benchmarks.speed.run_large_steps --model=gnmt_4 --microbatches=2 \\
    --ops=100000 --limit_s=60 --out=/tmp/tenth.json
"""

import functools
import multiprocessing
import pathlib
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import numpy as np
from absl import flags

from benchmarks.lib import command, report, saved_rows
from benchmarks.lib.command import Options
from benchmarks.models import synthetic
from tfplace.bin import cli
from tfplace.core import OpGraph, Problem
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.presets import cluster_preset
from tfplace.errors import TfplaceError
from tfplace.formats.packed_graph import pack_graph, unpack_graph
from tfplace.placers import registry

PLACERS = (*registry.CLASSICAL, *registry.MICROBATCHED, "annealing", "auto")
BUILD, SIMULATE = "build", "simulate"  # rows beside those of placers
_LEAST_S = 2.0  # of simulations
_HEADS = (
  *("placer", "seconds", "step ms", "evaluations", "per second", "peak MiB"),
)


OPTIONS = Options("run_large_steps", __doc__)
OPTIONS.add("model", "gnmt_8", "Model of the zoo; empty: none.")
OPTIONS.add("on", "p100x8", "Its cluster.")
OPTIONS.add("synthetic_on", "8*a100x8", "Cluster of the synthetic graph.")
OPTIONS.add("microbatches", 8, "Microbatches of the model's step.", least=1)
OPTIONS.add("ops", 1_000_000, "Ops of a synthetic graph; 0: none.", least=0)
OPTIONS.add("seed", 0, "Seed of the synthetic graph and the searches.", least=0)
OPTIONS.add("budget_s", 300.0, "Seconds of each search.", least=0)
OPTIONS.add(
  "limit_s", 1200.0, "Seconds after which anything is stopped.", least=0
)
OPTIONS.add("placers", list(PLACERS), "Strategies.")
OPTIONS.out("large_steps.json")


def main(values: flags.FlagValues) -> None:
  """Runs what is missing; saves after each row."""
  cli.check_writable(values.out)
  command.check_names("placers", values.placers, registry.STRATEGIES)
  settings = {"budget_s": values.budget_s, "limit_s": values.limit_s}
  rows = saved_rows.SavedRows(values.out, settings)
  found = {}
  with tempfile.TemporaryDirectory() as folder:
    for label, cluster, make in cases(values):
      cluster_preset(cluster)
      path = f"{folder}/{len(found)}.graph"
      for row in (BUILD, SIMULATE, *values.placers):
        run = functools.partial(_run, values, row, path, cluster, make)
        found[label, row] = rows.row(f"{label}/{cluster}/{row}", run)
        if row == BUILD and "error" in found[label, row]:
          break
  report.write(values.out, markdown(found, values.budget_s))


Make = Callable[[], OpGraph]


def cases(values: flags.FlagValues) -> list[tuple[str, str, Make]]:
  """Label, cluster, and what makes the graph."""
  found: list[tuple[str, str, Make]] = []
  if values.model:
    label = f"{values.model}, {values.microbatches} microbatches"
    make = functools.partial(
      extracted, values.model, values.on, values.microbatches
    )
    found.append((label, values.on, make))
  if values.ops:
    make = functools.partial(synthetic.synthetic_graph, values.ops, values.seed)
    label = f"{values.ops:,} synthetic ops"
    found.append((label, values.synthetic_on, make))
  return found


def extracted(model: str, cluster: str, microbatches: int) -> OpGraph:
  """The split step, extracted anew."""
  from tfplace.plan import sources

  (graph,) = sources.extract_each(
    model, [cluster], microbatches=MicrobatchConfig(microbatches)
  )
  return graph


def _run(
  values: flags.FlagValues, row: str, path: str, cluster: str, make: Make
) -> dict:
  """One row, in a process of its own."""
  built = None
  if not pathlib.Path(path).exists():
    built = in_a_process(values.limit_s, build, path, make)
    if row == BUILD or "error" in built:
      return built
  if row == SIMULATE:
    return in_a_process(values.limit_s, simulate, path, cluster)
  return in_a_process(
    values.limit_s, place, path, cluster, row, values.budget_s, values.seed
  )


def in_a_process(
  limit_s: float, work: Callable[..., dict], *arguments: Any
) -> dict:
  """Returns the result of `work` and its process's peak memory, or an error."""
  context = multiprocessing.get_context("spawn")
  ours, theirs = context.Pipe()
  process = context.Process(target=_work, args=(theirs, work, arguments))
  process.start()
  theirs.close()
  try:
    if not ours.poll(limit_s):
      return {"error": f"did not end within {limit_s:g} s"}
    return ours.recv()
  except EOFError:
    process.join()
    return {"error": f"its process ended with code {process.exitcode}"}
  finally:
    process.kill()
    process.join()


def _work(
  parent: connection.Connection,
  work: Callable[..., dict],
  arguments: Sequence[Any],
) -> None:
  try:
    found = work(*arguments)
  except (TfplaceError, MemoryError) as error:
    found = {"error": str(error) or type(error).__name__}
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  parent.send({**found, "peak_mib": peak / 1024})


def build(path: str, make: Make) -> dict:
  """Makes the graph and keeps it."""
  began = time.perf_counter()
  graph = make()
  seconds = time.perf_counter() - began
  pathlib.Path(path).write_bytes(pack_graph(graph))
  return {"ops": graph.num_ops, "edges": graph.num_edges, "seconds": seconds}


def load(path: str, cluster: str) -> Problem:
  """The problem of a graph that was built."""
  graph = unpack_graph(pathlib.Path(path).read_bytes())
  return Problem(graph, cluster_preset(cluster))


def simulate(path: str, cluster: str) -> dict:
  """Simulations per second of one core, of equal shares of the work."""
  from tfplace.simulate import Simulator

  problem = load(path, cluster)
  began = time.perf_counter()
  simulator = Simulator(problem, num_threads=1)
  row = synthetic.contiguous(problem)[None]
  (first,) = simulator.evaluate(row)
  ready_s = time.perf_counter() - began
  done, began = 0, time.perf_counter()
  while time.perf_counter() - began < _LEAST_S:
    simulator.run(row)
    done += 1
  return {
    "ready_s": ready_s,
    "evaluations_per_s": done / (time.perf_counter() - began),
    "step_time_us": first.step_time_us,
    "is_feasible": first.feasible,
  }


def place(
  path: str, cluster: str, strategy: str, budget_s: float, seed: int
) -> dict:
  """One placer, compiled before its clock starts."""
  from tfplace import placers
  from tfplace.placers.place import warm_up

  began = time.perf_counter()
  problem = load(path, cluster)
  load_s = time.perf_counter() - began
  warm_up(strategy, problem.cluster.has_message_costs)
  began = time.perf_counter()
  found = placers.place(problem, strategy, budget_s, seed)
  return {
    "load_s": load_s,
    "seconds": time.perf_counter() - began,
    "evaluations": found.evaluations,
    "step_time_us": found.evaluation.step_time_us,
    "devices": len(np.unique(found.placement.devices)),
    "won_by": found.history[-1].strategy if found.history else strategy,
    "tried": {
      result.strategy: [result.evaluation.step_time_us, result.seconds]
      for result in found.tried
    },
    "skipped": dict(found.skipped),
  }


def markdown(found: Mapping[tuple[str, str], dict], budget_s: float) -> str:
  """A table for each graph."""
  parts = [f"Searches of {budget_s:g} s.\n"]
  for label in dict.fromkeys(label for label, _ in found):
    built = found[label, BUILD]
    parts.append(_about(label, built, found.get((label, SIMULATE), {})))
    lines = [
      _cells(row, result)
      for (of, row), result in found.items()
      if of == label and row not in (BUILD, SIMULATE)
    ]
    parts.append(report.markdown(_HEADS, lines) + "\n")
  return "\n".join(parts)


def _about(label: str, built: dict, simulated: dict) -> str:
  if "error" in built:
    return f"**{label}**: {built['error']}\n"
  text = (
    f"**{label}**: {built['ops']:,} ops, {built['edges']:,} edges, built in"
    f" {built['seconds']:.0f} s ({built['peak_mib']:,.0f} MiB)"
  )
  if "error" in simulated:
    return f"{text}; simulation: {simulated['error']}\n"
  return (
    f"{text}; {simulated['evaluations_per_s']:.2f} simulations a second of one"
    f" core, after {simulated['ready_s']:.1f} s\n"
  )


def _cells(placer: str, result: dict) -> list[str]:
  if "error" in result:
    return [placer, "-", result["error"][:80], "-", "-", "-"]
  rate = result["evaluations"] / max(result["seconds"], 1e-9)
  return [
    placer,
    f"{result['seconds']:.1f}",
    f"{result['step_time_us'] / 1e3:.1f}",
    f"{result['evaluations']:,}",
    f"{rate:.2f}",
    f"{result['peak_mib']:,.0f}",
  ]


if __name__ == "__main__":
  OPTIONS.run(main)
