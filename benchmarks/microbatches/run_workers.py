"""Split steps that really run, beside MultiWorkerMirroredStrategy.

A GPT-like model and a convolutional one without branches, on two worker
processes of one core each: one worker, the best unsplit placement, and the best
in two and in four microbatches, each found by alternating search and
measurement as `tfplace-place --measure` does; and
`MultiWorkerMirroredStrategy`, two processes of one thread, on the same model,
weights, batch and cores. All run in rounds, so that a busy moment of the host
hits all of them. Losses of the first and the last step show that all compute
the same. Writes JSON after each model, and a table in Markdown.

  python -m benchmarks.microbatches.run_workers
  python -m benchmarks.microbatches.run_workers --models=convolutional

It needs a core for each worker and nothing else running.
"""

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from benchmarks.lib import command, report
from benchmarks.lib.command import Options
from benchmarks.measured import run_fidelity
from tfplace.bin import cli
from tfplace.core import Evaluation, Placement, Problem
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.errors import MeasurementError
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace import measure
  from tfplace.extraction.traced import TracedStep

MODELS = ("gpt", "convolutional")
MICROBATCHES = (2, 4)
ONE, UNSPLIT = "one worker", "unsplit"
MIRRORED = "MultiWorkerMirrored"
WARMUP = 2
SAME = 1e-3  # relative difference of losses up to which all compute the same


@dataclasses.dataclass(frozen=True)
class Row:
  """A placement that is to be run in rounds.

  Attributes:
    traced: its step.
    placement: of it, in the problem with the costs that were fitted last.
    predicted_us: step time by these.
  """

  traced: "TracedStep"
  placement: Placement
  predicted_us: float


OPTIONS = Options("run_workers", __doc__)
run_fidelity.define_runs(OPTIONS, list(MODELS), 60.0, "split_workers.json")
OPTIONS.add(
  "measure_s",
  120.0,
  "Seconds of running steps of each number of microbatches, before the"
  " comparison.",
  least=0,
)


def main(values: flags.FlagValues) -> None:
  """Runs every model; saves after each."""
  command.check_names("models", values.models, MODELS)
  run_fidelity.run_models(values, compare, markdown)


def compare(
  values: flags.FlagValues, live: "measure.OpenCluster", name: str
) -> dict[str, Any]:
  """One model: what is placed, what it is predicted to take, and takes."""
  from benchmarks.models.live import KERAS

  build, batch_size, _ = KERAS[name]
  model = build()
  data = batch(model, batch_size, values.seed)
  weights = model.get_weights()
  rows: dict[str, Row] = {}
  for count in (1, *MICROBATCHES):
    with cli.showing_progress(f"Placing {name} in {count} microbatches"):
      traced = trace(model, weights, data, count)
      rows |= placed(values, live, traced, count)
  times, losses = run_rounds(values, live, rows, name, data, weights)
  result = {
    label: {
      "measured_us": statistics.median(took),
      "quartiles_us": [float(q) for q in np.percentile(took, [25, 75])],
      "losses": losses[label],
      **({"predicted_us": rows[label].predicted_us} if label in rows else {}),
    }
    for label, took in times.items()
  }
  return {"rows": result, "summary": summary(result)}


def batch(model: Any, batch_size: int, seed: int) -> dict[str, np.ndarray]:
  """The batch of every step: "x" and "y"."""
  rng = np.random.default_rng(seed)
  shape = (batch_size, *model.input_shape[1:])
  classes = model.output_shape[-1]
  if model.inputs[0].dtype == "int32":
    x = rng.integers(0, classes, shape).astype(np.int32)
  else:
    x = rng.normal(size=shape).astype(np.float32)
  y = rng.integers(0, classes, (batch_size, *model.output_shape[1:-1]))
  return {"x": x, "y": y.astype(np.int32)}


def trace(
  model: Any,
  weights: list[np.ndarray],
  data: dict[str, np.ndarray],
  count: int,
) -> "TracedStep":
  """The step in `count` microbatches, from the same weights."""
  from tfplace.extraction import trace_keras

  model.set_weights(weights)
  return trace_keras(
    model, sample=(data["x"], data["y"]), microbatches=MicrobatchConfig(count)
  )


def placed(
  values: flags.FlagValues,
  live: "measure.OpenCluster",
  traced: "TracedStep",
  count: int,
) -> dict[str, Row]:
  """The best placement that search and measurement find; unsplit, one worker
  besides."""
  from tfplace.plan import PlanConfig, sources
  from tfplace.plan.live_step import LiveStep
  from tfplace.plan.measured import search_measured

  problem = Problem(sources.op_graph(traced, live.cluster), live.cluster)
  plan = search_measured(
    problem,
    PlanConfig("auto", values.budget_s, values.seed, gap=0.0),
    LiveStep(live, traced, measure_s=values.measure_s),
  )
  label = UNSPLIT if count == 1 else f"{count} microbatches"
  chosen = {label: plan.best.placement}
  if count == 1:
    on_one = np.zeros(problem.graph.num_ops, np.int32)
    chosen[ONE] = Placement(plan.problem, on_one)
  simulator = Simulator(plan.problem)
  return {
    name: Row(traced, found, simulator.evaluate([found])[0].step_time_us)
    for name, found in chosen.items()
  }


def run_rounds(
  values: flags.FlagValues,
  live: "measure.OpenCluster",
  rows: dict[str, Row],
  name: str,
  data: dict[str, np.ndarray],
  weights: list[np.ndarray],
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
  """Label -> step times of all rounds; label -> first and last loss.

  Raises:
    MeasurementError: one of them could not be run.
  """
  from benchmarks.microbatches import multi_worker

  times: dict[str, list[float]] = {label: [] for label in (*rows, MIRRORED)}
  losses: dict[str, list[float]] = {}
  for _ in range(values.rounds):
    for label, row in rows.items():
      found = run(values, live, label, row)
      times[label] += found.extra["step_times_us"]
      key = row.traced.fetches[0]
      losses[label] = [
        found.extra[which][key] for which in ("fetches", "last_fetches")
      ]
    mirrored = multi_worker.run(name, data, weights, WARMUP, values.steps)
    times[MIRRORED] += mirrored.step_us
    losses[MIRRORED] = [mirrored.first_loss, mirrored.last_loss]
  return times, losses


def run(
  values: flags.FlagValues, live: "measure.OpenCluster", label: str, row: Row
) -> Evaluation:
  """One placement, once.

  Raises:
    MeasurementError: it could not be run.
  """
  harness = live.harness(
    row.placement.problem,
    row.traced,
    steps=values.steps,
    warmup=WARMUP,
    traced_steps=0,
    phase_s=np.inf,  # as many steps as the others, for their losses
  )
  (found,) = harness.evaluate([row.placement])
  if "error" in found.extra:
    raise MeasurementError(f"{label}: {found.extra['error']}")
  return found


def summary(result: dict[str, dict[str, Any]]) -> dict[str, Any]:
  """Ratios of measured steps to the best split one, and of losses."""
  took = {label: row["measured_us"] for label, row in result.items()}
  divided = [label for label in took if label.endswith("microbatches")]
  best = min(divided, key=lambda label: took[label])
  expected = np.array(result[ONE]["losses"])
  errors = {
    label: float(np.abs(np.array(row["losses"]) / expected - 1).max())
    for label, row in result.items()
  }
  return {
    "best split": best,
    "error": result[best]["predicted_us"] / took[best] - 1,
    **{f"{label} / split": took[label] / took[best] for label in took},
    "loss difference": errors,
    "all compute the same": max(errors.values()) <= SAME,
  }


def markdown(models: dict[str, Any]) -> str:
  """A line for each model and what ran."""
  heads = (
    *("model", "step", "predicted ms", "measured ms (quartiles)"),
    *("over the best split", "first and last loss"),
  )
  lines = []
  for name, model in models.items():
    for label, row in model["rows"].items():
      predicted = row.get("predicted_us")
      low, high = (us / 1e3 for us in row["quartiles_us"])
      first, last = row["losses"]
      ratio = model["summary"][f"{label} / split"]
      cells = [
        *(name, label),
        "-" if predicted is None else f"{predicted / 1e3:.1f}",
        f"{row['measured_us'] / 1e3:.1f} ({low:.1f} to {high:.1f})",
        f"{ratio:.2f}",
        f"{first:.5f}, {last:.5f}",
      ]
      lines.append(cells)
  return report.markdown(heads, lines)


if __name__ == "__main__":
  OPTIONS.run(main)
