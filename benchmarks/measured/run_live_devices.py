"""Places eight models on running devices by `auto`, and measures their steps.

Each model is profiled on local workers; `auto` alternates search and measuring,
as `tfplace-place --measure` does. Its placement is then run beside METIS, the
expert, one worker and, where the zoo has no expert's rules, a split by hand, in
rounds, so that a busy moment of the host hits all of them. For each model: how
far the prediction of `auto`'s placement is off, how it compares with one
worker, and the rank correlation of all that ran. Writes JSON after each model,
and a table in Markdown.

  python -m benchmarks.measured.run_live_devices
  python -m benchmarks.measured.run_live_devices --models=two_towers

It needs a core for each worker and nothing else running.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags
from scipy import stats

from benchmarks.lib import report
from benchmarks.lib.command import Options
from benchmarks.measured import run_fidelity
from tfplace import placers
from tfplace.bin import cli
from tfplace.core import Problem
from tfplace.errors import TfplaceError
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace import measure
  from tfplace.extraction.traced import TracedStep
  from tfplace.plan.search import PlanReport

NAMES = (
  *run_fidelity.MODELS,
  "gpt",
  "gpt_2_microbatches",
  "two_towers",
  "convolutional",
)
COLUMNS = ("one worker", "auto", "metis", "expert", "by hand")


OPTIONS = Options("run_live_devices", __doc__)
run_fidelity.define_runs(OPTIONS, list(NAMES), 60.0, "live_devices.json")
OPTIONS.add(
  "measure_s",
  120.0,
  "Seconds of running steps before the comparison, profile included.",
  least=0,
)


def main(values: flags.FlagValues) -> None:
  """Runs every model; saves after each."""
  run_fidelity.run_models(values, compare, markdown)


def compare(
  values: flags.FlagValues, live: "measure.OpenCluster", name: str
) -> dict[str, Any]:
  """One model: placements, predicted steps, measured steps."""
  from tfplace.plan import sources

  traced, mark = trace(name)
  problem = Problem(sources.op_graph(traced, live.cluster), live.cluster)
  plan = search(values, live, problem, traced)
  rows = placements(values, plan, mark)
  predicted = Simulator(plan.problem).evaluate(np.stack(list(rows.values())))
  times = run_fidelity.measured(values, live, plan.problem, traced, rows)
  result = run_fidelity.results(dict(zip(rows, predicted, strict=True)), times)
  return {
    "ops": problem.graph.num_ops,
    "searches": [r.strategy for r in plan.results].count("auto"),
    "chosen": plan.best.strategy,
    "devices_of_auto": len(set(rows["auto"].tolist())),
    "placements": result,
    "summary": summary(result),
  }


def trace(name: str) -> "tuple[TracedStep, str | None]":
  """The step of a model, and what marks its halves where the split is ours."""
  from tfplace.extraction import trace_keras
  from tfplace.plan import sources

  if name in run_fidelity.MODELS:
    batch_size, sizes = run_fidelity.MODELS[name]
    step = sources.trace("model", name, batch_size=batch_size, sizes=sizes)
    return step, None
  from benchmarks.models import live

  if name not in live.KERAS:
    raise cli.UsageError(
      f"--models: unknown {name!r}; choose from {', '.join(NAMES)}"
    )
  build, batch_size, mark = live.KERAS[name]
  return trace_keras(build(), batch_size=batch_size), mark


def search(
  values: flags.FlagValues,
  live: "measure.OpenCluster",
  problem: Problem,
  traced: "TracedStep",
) -> "PlanReport":
  """Result of `auto` with alternating search and measurement."""
  from tfplace.plan import PlanConfig
  from tfplace.plan.live_step import LiveStep
  from tfplace.plan.measured import search_measured

  config = PlanConfig("auto", values.budget_s, values.seed, gap=0.0)
  step = LiveStep(live, traced, measure_s=values.measure_s)
  return search_measured(step.profiled(problem), config, step)


def placements(
  values: flags.FlagValues, plan: "PlanReport", mark: str | None
) -> dict[str, np.ndarray]:
  """Label -> [num_ops] devices."""
  problem = plan.problem
  rows = {
    "one worker": np.zeros(problem.graph.num_ops, np.int32),
    "auto": plan.best.placement.devices,
  }
  for strategy in ("metis", "expert"):
    try:
      result = placers.place(problem, strategy, seed=values.seed)
    except TfplaceError as error:  # the expert has no rules for this model
      print(f"{strategy}: {error}")
      continue
    rows[strategy] = result.placement.devices
  if mark is not None:
    from benchmarks.models import live

    rows["by hand"] = live.by_hand(problem, mark)
  return rows


def summary(result: dict[str, dict[str, Any]]) -> dict[str, float]:
  """Ratios of steps, and the error of `auto`'s prediction."""
  took = {label: row["measured_us"] for label, row in result.items()}
  predicted = [row["predicted_us"] for row in result.values()]
  best = min(us for label, us in took.items() if label != "auto")
  return {
    "auto_error": result["auto"]["predicted_us"] / took["auto"] - 1,
    "speedup_over_one_worker": took["one worker"] / took["auto"],
    "speedup_over_best_other": best / took["auto"],
    "rank_correlation": float(
      stats.spearmanr(predicted, list(took.values())).statistic
    ),
  }


def markdown(models: dict[str, Any]) -> str:
  """A row for each model: predicted / measured milliseconds."""
  heads = ("model", *COLUMNS, "auto's error", "one worker / auto", "rank")
  lines = []
  for name, model in models.items():
    cells = [name]
    for label in COLUMNS:
      row = model["placements"].get(label)
      cells.append(
        "-"
        if row is None
        else f"{row['predicted_us'] / 1e3:.0f} / {row['measured_us'] / 1e3:.0f}"
      )
    short = model["summary"]
    cells += [
      f"{100 * short['auto_error']:+.1f}%",
      f"{short['speedup_over_one_worker']:.2f}",
      f"{short['rank_correlation']:.2f}",
    ]
    lines.append(cells)
  return report.markdown(heads, lines)


if __name__ == "__main__":
  OPTIONS.run(main)
