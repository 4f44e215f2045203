"""Two running workers, one of half speed: equal halves, by speed, and `auto`.

Two `tfplace-worker` processes have one thread each. The second one is stopped
half of the time, every few milliseconds, so that it has half of its time
slice whatever else the host does. The workers have kinds of their own in a
hosts file, so each is profiled.

- one worker: the whole step on the fast one, and on the slow one,
- equal halves: a microbatch of half of the batch on each, as data parallelism
  places them that takes the workers for equal,
- by speed: the same with the sizes that the profiles propose, the larger one on
  the fast worker,
- auto: search alternates with measurement, with its choice of microbatches.

All run in rounds, in an order of their own, so that a busy moment of the host
hits all of them. The ratio to equal halves is the median of those of the
rounds. Writes JSON after each model, and a table in Markdown.

  python -m benchmarks.measured.run_slowed_worker
  python -m benchmarks.measured.run_slowed_worker --models=gpt

It needs two cores and nothing else running.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from benchmarks.lib import command, report
from benchmarks.lib.command import Options
from benchmarks.measured import run_fidelity
from tfplace import placers
from tfplace.bin import cli
from tfplace.core import Placement, Problem
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.errors import MeasurementError
from tfplace.formats.json_file import write_json
from tfplace.plan.size_proposals import proposed_sizes
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace import measure
  from tfplace.extraction.traced import TracedStep
  from tfplace.plan.variants import StepVariant

MODELS = ("convolutional", "gpt")
FAST, SLOW = "fast", "slow"
HALVES, BY_SPEED, AUTO = "equal halves", "by speed", "auto"
_WARMUP = 2
# A program: alternately stops and continues a process.
_STOP_AND_GO = """
import os, signal, sys, time
pid, seconds = int(sys.argv[1]), float(sys.argv[2])
while True:
  for number in (signal.SIGSTOP, signal.SIGCONT):
    os.kill(pid, number)
    time.sleep(seconds)
"""
# Step variants that share the measuring time of `auto`, as in tfplace-place.
_SHARES = 4


@dataclasses.dataclass(frozen=True)
class Row:
  """A placement that runs in rounds.

  Attributes:
    traced: its step.
    placement: of the problem with measured costs.
    microbatches: examples of each microbatch, in words.
  """

  traced: "TracedStep"
  placement: Placement
  microbatches: str

  @property
  def predicted_us(self) -> float:
    (found,) = Simulator(self.placement.problem).evaluate([self.placement])
    return found.step_time_us


OPTIONS = Options("run_slowed_worker", __doc__)
OPTIONS.add("models", list(MODELS), "Models of models/live.py.")
OPTIONS.add("batch_size", 12, "Examples of a step.", least=2)
OPTIONS.add("rounds", 5, "Times each placement is run.", least=1)
OPTIONS.add("steps", 5, "Timed steps of each run.", least=1)
OPTIONS.add(
  "stopped_s",
  0.004,
  "Seconds that the slow worker stands still, then runs.",
  least=0.001,
)
OPTIONS.add("seed", 0, "Seed of all random choices.", least=0)
OPTIONS.add("budget_s", 10.0, "Seconds of the search.", least=0)
OPTIONS.add("measure_s", 320.0, "Seconds of running steps for `auto`.", least=0)
OPTIONS.out("slowed_worker.json")


def main(values: flags.FlagValues) -> None:
  """Runs every model; saves after each."""
  cli.check_writable(values.out)
  command.check_names("models", values.models, MODELS)
  cli.load_tensorflow()
  out = pathlib.Path(values.out)
  found: dict[str, Any] = {"host": run_fidelity.host(), "models": {}}
  with slowed(values.stopped_s) as live:
    run_fidelity.print_needs(found["host"], len(live.cluster.devices))
    for name in values.models:
      found["models"][name] = compare(values, live, name)
      write_json(out, found)
      print(json.dumps({name: found["models"][name]["summary"]}), flush=True)
  found["host"]["load_after"] = os.getloadavg()[0]
  write_json(out, found)
  report.write(out, markdown(found["models"]))


@contextlib.contextmanager
def slowed(stopped_s: float) -> "Iterator[measure.OpenCluster]":
  """Opens a fast worker, and one that is stopped and continued alternately.

  Raises:
    MeasurementError: the workers do not start.
  """
  from tests.testing.served_workers import serving, write_hosts
  from tfplace.measure import open_cluster

  with contextlib.ExitStack() as stack:
    served = stack.enter_context(serving(["127.0.0.1:0"] * 2))
    pid = served[1].server_pid()
    halving = subprocess.Popen(
      [sys.executable, "-c", _STOP_AND_GO, str(pid), str(stopped_s)]
    )
    stack.callback(halving.wait)
    stack.callback(halving.kill)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    path = write_hosts(
      pathlib.Path(folder) / "hosts.json",
      {name: w.address for name, w in zip((FAST, SLOW), served, strict=True)},
      **{FAST: FAST, SLOW: SLOW},
    )
    yield stack.enter_context(open_cluster(path))


def compare(
  values: flags.FlagValues, live: "measure.OpenCluster", name: str
) -> dict[str, Any]:
  """One model: what is placed, what it is predicted to take, and takes."""
  from benchmarks.models.live import KERAS

  model = KERAS[name][0]()
  rows = placed(values, live, model, name)
  rounds = run_rounds(values, live, rows)
  result = {
    label: {
      "microbatches": row.microbatches,
      "predicted_us": row.predicted_us,
      "measured_us": statistics.median(rounds[label]),
      "rounds_us": rounds[label],
      "devices": len(set(row.placement.devices.tolist())),
    }
    for label, row in rows.items()
  }
  return {"rows": result, "summary": summary(rounds)}


def placed(
  values: flags.FlagValues,
  live: "measure.OpenCluster",
  model: Any,
  name: str,
) -> dict[str, Row]:
  """Places the step in each way; label -> row."""
  from tfplace.plan import PlanConfig
  from tfplace.plan.config import Stages
  from tfplace.plan.microbatches import choose_variant

  @functools.cache
  def opened(config: MicrobatchConfig) -> "StepVariant":
    what = "whole" if config.is_whole else f"in {config.words}"
    print(f"profiling {name} {what}", flush=True)
    return profiled(values, live, model, config)

  whole = opened(WHOLE)
  ops = whole.problem.graph.num_ops
  rows = {
    f"one worker, {which}": row_of(whole, np.full(ops, device))
    for device, which in enumerate((FAST, SLOW))
  }
  proposals = [s for s in proposed_sizes(whole.problem) if len(s) == 2]
  if not proposals:
    raise MeasurementError(f"{name}: the workers are equally fast")
  for label, config in (
    (HALVES, MicrobatchConfig(2)),
    (BY_SPEED, MicrobatchConfig(2, sizes=proposals[0])),
  ):
    variant = opened(config)
    # By its own costs, data parallelism may leave the slow worker out.
    equal = as_equals(variant.problem)
    found = placers.place(equal, "data_parallel", seed=values.seed)
    rows[label] = row_of(variant, found.placement.devices)
  config = PlanConfig(
    *("auto", values.budget_s, values.seed),
    gap=0.0,
    measure=True,
    chooses_microbatches=True,
  )
  plan, variant = choose_variant(opened, config, Stages())
  measured = dataclasses.replace(variant, problem=plan.problem)
  rows[AUTO] = row_of(measured, plan.best.placement.devices)
  return rows


def profiled(
  values: flags.FlagValues,
  live: "measure.OpenCluster",
  model: Any,
  config: MicrobatchConfig,
) -> "StepVariant":
  """A step variant with the costs of its ops on each worker."""
  from tfplace.extraction import trace_keras
  from tfplace.plan import sources
  from tfplace.plan.live_step import LiveStep
  from tfplace.plan.variants import StepVariant

  traced = trace_keras(model, values.batch_size, microbatches=config)
  problem = Problem(sources.op_graph(traced, live.cluster), live.cluster)
  step = LiveStep(live, traced, measure_s=values.measure_s).shared(_SHARES)
  return StepVariant(step.profiled(problem), traced, step)


def as_equals(problem: Problem) -> Problem:
  """The problem with all devices like the first one, of one kind."""
  first = problem.cluster.devices[0]
  alike = tuple(
    dataclasses.replace(
      device, kind=first.kind, op_overhead_us=first.op_overhead_us
    )
    for device in problem.cluster.devices
  )
  cluster = dataclasses.replace(problem.cluster, devices=alike)
  return Problem(problem.graph, cluster)


def row_of(variant: "StepVariant", devices: np.ndarray) -> Row:
  """A row of a step variant and [num_ops] devices."""
  from tfplace.core.microbatches import microbatches_of

  if variant.traced is None:
    raise MeasurementError("the step has no trace to run")
  config = microbatches_of(variant.problem.graph.names)
  words = "whole" if config.is_whole else config.words
  placement = Placement(variant.problem, devices.astype(np.int32))
  return Row(variant.traced, placement, words)


def run_rounds(
  values: flags.FlagValues,
  live: "measure.OpenCluster",
  rows: Mapping[str, Row],
) -> dict[str, list[float]]:
  """Label -> the median step of each round.

  Raises:
    MeasurementError: one of them could not be run.
  """
  harnesses = {
    label: live.harness(
      row.placement.problem,
      row.traced,
      steps=values.steps,
      warmup=_WARMUP,
      traced_steps=0,
      phase_s=np.inf,
    )
    for label, row in rows.items()
  }
  times: dict[str, list[float]] = {label: [] for label in rows}
  rng = np.random.default_rng(values.seed)
  with cli.showing_progress(f"Running {len(rows)} placements"):
    for _ in range(values.rounds):
      for label in rng.permutation(list(rows)).tolist():
        (found,) = harnesses[label].evaluate([rows[label].placement])
        if "error" in found.extra:
          raise MeasurementError(f"{label}: {found.extra['error']}")
        times[label].append(found.step_time_us)
  return times


def summary(rounds: Mapping[str, list[float]]) -> dict[str, Any]:
  """Ratios to equal halves of the same round: median, least and most."""
  base = np.array(rounds[HALVES])
  ratios = {label: np.array(took) / base for label, took in rounds.items()}
  slow = np.array(rounds[f"one worker, {SLOW}"])
  return {
    "slow over fast": float(
      np.median(slow / np.array(rounds[f"one worker, {FAST}"]))
    ),
    "over equal halves": {
      label: [float(np.median(r)), float(r.min()), float(r.max())]
      for label, r in ratios.items()
    },
  }


def markdown(models: Mapping[str, Any]) -> str:
  """A line for each model and placement."""
  heads = ("model", "step", "microbatches", "predicted ms", "measured ms")
  lines = []
  for name, model in models.items():
    for label, row in model["rows"].items():
      middle, least, most = model["summary"]["over equal halves"][label]
      lines.append(
        [
          *(name, label, row["microbatches"]),
          f"{row['predicted_us'] / 1e3:.0f}",
          f"{row['measured_us'] / 1e3:.0f}",
          f"{middle:.2f} ({least:.2f} to {most:.2f})",
        ]
      )
  return report.markdown((*heads, "over equal halves (rounds)"), lines)


if __name__ == "__main__":
  OPTIONS.run(main)
