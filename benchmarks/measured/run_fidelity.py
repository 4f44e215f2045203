"""Simulation error: predicted and measured steps of many placements.

Models of the zoo, small enough for worker processes, are profiled and their
links calibrated; then placements from random to good are simulated and run
for real, in rounds, so that a busy moment of the host hits all of them. For
each model: the median relative error of the simulated step time, and the rank
correlation with the measured one. Writes JSON and a scatter plot.

  python -m benchmarks.measured.run_fidelity
  python -m benchmarks.measured.run_fidelity --models=nmt  # anew, beside \\
      the others
  python -m benchmarks.measured.run_fidelity --models=nmt --delay_s=0.001 \\
      --out=apart.json

It needs a core for each worker and nothing else running: the program says so
where that is not given, and its figures then tell more of the host than of
the simulator.
"""

import json
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags
from matplotlib.figure import Figure
from rich import console, table
from scipy import stats

from benchmarks.lib import command, report
from benchmarks.lib.command import Options
from benchmarks.measured import two_hosts
from tfplace import placers
from tfplace.bin import cli
from tfplace.core import Evaluation, Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import MeasurementError, TfplaceError
from tfplace.formats.cluster import cluster_to_json
from tfplace.formats.json_file import write_json
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from tfplace import measure
  from tfplace.extraction.traced import TracedStep

# Model -> batch size and sizes: steps of a fraction of a second on one core,
# beside which the millisecond that a session takes to start one is little.
MODELS: dict[str, tuple[int, dict[str, int]]] = {
  "inception_v3": (2, {"image_size": 139}),
  "nmt": (32, {"units": 256, "vocabulary": 4000, "length": 12}),
  "rnnlm_2": (32, {"units": 512, "vocabulary": 4000, "length": 12}),
  "transformer_xl_2": (
    4,
    {"units": 256, "feed_forward": 1024, "length": 64, "memory": 64},
  ),
}
ONE_SHOT = ("single", "expert", "m_topo", "m_etf", "heft", "metis")


def define_runs(
  options: Options, models: list[str], budget_s: float, out: str
) -> None:
  """Adds the flags of a benchmark that runs placements of models."""
  options.add("models", models, "Models.")
  options.add("cluster", "workers:2", "Devices.")
  options.add("rounds", 3, "Times each placement is run.", least=1)
  options.add("steps", 5, "Timed steps of each run.", least=1)
  options.add("seed", 0, "Seed of all random choices.", least=0)
  options.add("budget_s", budget_s, "Seconds of the search.", least=0)
  options.out(out)


OPTIONS = Options("run_fidelity", __doc__)
OPTIONS.add("placements", 30, "Placements of each model.", least=1)
OPTIONS.add(
  "delay_s",
  None,
  "Runs on two network namespaces, which messages take so many seconds"
  " between, instead of on --cluster.",
  least=0,
  kind=float,
)
define_runs(OPTIONS, list(MODELS), 20.0, "fidelity.json")


def main(values: flags.FlagValues) -> None:
  """Runs every model; saves after each."""
  cli.check_writable(values.out)
  command.check_names("models", values.models, MODELS)
  cli.load_tensorflow()
  from tfplace import measure

  out = pathlib.Path(values.out)
  found: dict[str, Any] = {"host": host(), "models": {}}
  if set(values.models) != set(MODELS) and out.exists():
    found["models"] = json.loads(out.read_text())["models"]  # of the others
  with (
    measure.open_cluster(values.cluster)
    if values.delay_s is None
    else two_hosts.opened(values.delay_s)
  ) as live:
    print_needs(found["host"], len(live.cluster.devices))
    for name in values.models:
      found["models"][name] = compare(values, live, name)
      write_json(out, found)
      print_row(name, found["models"][name])
  found["host"]["load_after"] = os.getloadavg()[0]
  write_json(out, found)
  print_table(found["models"])
  draw(found["models"], out.with_suffix(".png"))
  print(f"wrote {out} and {out.with_suffix('.png').name}")


def run_models(
  values: flags.FlagValues,
  compare: Callable[[flags.FlagValues, "measure.OpenCluster", str], dict],
  markdown: Callable[[dict[str, dict]], str],
) -> None:
  """Compares every model on running devices; saves after each.

  Args:
    values: of the flags.
    compare: returns what is kept of one model, with its "summary".
    markdown: makes the table of all models, those of the file included.
  """
  cli.check_writable(values.out)
  cli.load_tensorflow()
  from tfplace import measure

  out = pathlib.Path(values.out)
  found: dict[str, Any] = {"host": host(), "models": {}}
  if out.exists():
    found["models"] = json.loads(out.read_text())["models"]
  with measure.open_cluster(values.cluster) as live:
    print_needs(found["host"], len(live.cluster.devices))
    for name in values.models:
      found["models"][name] = compare(values, live, name)
      write_json(out, found)
      print(json.dumps({name: found["models"][name]["summary"]}), flush=True)
  report.write(out, markdown(found["models"]))


def host() -> dict[str, Any]:
  """Conditions under which the times are comparable."""
  cores = sorted(os.sched_getaffinity(0))
  return {"cores": len(cores), "load_before": os.getloadavg()[0]}


def print_needs(about: dict[str, Any], devices: int) -> None:
  """Warns where the host is not fit to measure on."""
  if about["cores"] < devices:
    print(
      f"warning: {devices} workers on {about['cores']} cores: what should run"
      " at once takes turns; give a core to each"
    )
  if about["load_before"] > 0.5:
    print(
      f"warning: the load is {about['load_before']:.1f}: other programs are"
      " running, and measured steps will be too long; wait until it is idle"
    )


def compare(
  values: flags.FlagValues, live: "measure.OpenCluster", name: str
) -> dict[str, Any]:
  """One model: its placements, predicted and measured."""
  problem, traced = profiled(live, name)
  simulator = Simulator(problem)
  rows = placements(simulator, values.placements, values.budget_s, values.seed)
  predicted = simulator.evaluate(np.stack(list(rows.values())))
  times = measured(values, live, problem, traced, rows)
  result = results(dict(zip(rows, predicted, strict=True)), times)
  if not result:
    raise MeasurementError(f"none of the placements of {name} could be run")
  return {
    "ops": problem.graph.num_ops,
    "op_overhead_us": problem.cluster.devices[0].op_overhead_us,
    "links": cluster_to_json(problem.cluster)["links"],
    "failed": [label for label in rows if not times[label]],
    "placements": result,
    **figures(result),
  }


def results(
  predicted: Mapping[str, Evaluation], times: Mapping[str, list[float]]
) -> dict[str, dict[str, Any]]:
  """Placement -> predicted and measured step, of those that could be run."""
  return {
    label: {
      "predicted_us": evaluation.step_time_us,
      "measured_us": statistics.median(times[label]),
      "quartiles_us": [float(q) for q in np.percentile(times[label], [25, 75])],
      "bytes_moved": evaluation.bytes_moved,
    }
    for label, evaluation in predicted.items()
    if times[label]
  }


def profiled(
  live: "measure.OpenCluster", name: str
) -> "tuple[Problem, TracedStep]":
  """The problem with measured op times and calibrated links."""
  from tfplace.plan import live_step, sources

  batch_size, sizes = MODELS[name]
  with cli.showing_progress(f"Extracting {name}"):
    traced = sources.trace("model", name, batch_size=batch_size, sizes=sizes)
    graph = sources.op_graph(traced, live.cluster)
  with cli.showing_progress(f"Profiling {name}"):
    step = live_step.LiveStep(live, traced)
    return step.profiled(Problem(graph, live.cluster)), traced


def placements(
  evaluator: Evaluator, count: int, budget_s: float, seed: int
) -> dict[str, np.ndarray]:
  """Different placements from random to good, those of placers first.

  After them come the best of them, by `evaluator`, with more and more of its
  groups, up to all, on random devices.
  """
  problem = evaluator.problem
  rows: dict[str, np.ndarray] = {}
  for strategy in ("auto", *ONE_SHOT):
    try:
      result = placers.place(problem, strategy, budget_s, seed)
    except TfplaceError as error:  # it does not fit, or is not installed
      print(f"{strategy}: {error}")
      continue
    if not any((result.placement.devices == r).all() for r in rows.values()):
      rows[strategy] = result.placement.devices
    if len(rows) == count:
      return rows
  tried = evaluator.evaluate(np.stack(list(rows.values())))
  best = min(range(len(tried)), key=lambda i: tried[i].step_time_us)
  start = list(rows.values())[best]
  shares = np.geomspace(0.005, 1.0, count - len(rows))
  rng = np.random.default_rng(seed)
  for share in shares:
    rows[f"{100 * share:.3g}% random"] = _shaken(problem, start, share, rng)
  return rows


def _shaken(
  problem: Problem, row: np.ndarray, share: float, rng: np.random.Generator
) -> np.ndarray:
  """[num_ops] `row` with a share of its groups on random devices."""
  groups = np.zeros(problem.num_groups, np.int32)
  groups[problem.group_of] = row
  keys = rng.random(problem.group_allowed.shape)
  anywhere = np.where(problem.group_allowed, keys, -1.0).argmax(axis=1)
  moved = rng.random(problem.num_groups) < share
  moved[rng.integers(problem.num_groups)] = True
  return np.where(moved, anywhere, groups)[problem.group_of].astype(np.int32)


def measured(
  values: flags.FlagValues,
  live: "measure.OpenCluster",
  problem: Problem,
  traced: "TracedStep",
  rows: dict[str, np.ndarray],
) -> dict[str, list[float]]:
  """Placement -> its steps of all rounds; none where it could not be run.

  Each round has an order of its own, so that a host that is slower for some
  minutes is not taken for an error of one kind of placement.
  """
  harness = live.harness(
    problem, traced, steps=values.steps, warmup=2, traced_steps=0
  )
  times: dict[str, list[float]] = {label: [] for label in rows}
  rng = np.random.default_rng(values.seed)
  with cli.showing_progress(f"Running {len(rows)} placements"):
    for _ in range(values.rounds):
      for label in rng.permutation(list(rows)).tolist():
        (evaluation,) = harness.evaluate(rows[label][None])
        times[label] += evaluation.extra.get("step_times_us", [])
  return times


def figures(result: dict[str, dict[str, Any]]) -> dict[str, float | None]:
  """Errors relative to the measured step, and the rank correlation."""
  predicted = np.array([r["predicted_us"] for r in result.values()])
  took = np.array([r["measured_us"] for r in result.values()])
  errors = np.abs(predicted / took - 1)
  differ = min(len(set(predicted.tolist())), len(set(took.tolist()))) > 1
  return {
    "median_error": float(np.median(errors)),
    "p90_error": float(np.percentile(errors, 90)),
    "bias": float(np.median(predicted / took) - 1),
    "rank_correlation": float(stats.spearmanr(predicted, took).statistic)
    if differ
    else None,
  }


def print_row(name: str, model: dict[str, Any]) -> None:
  print(
    f"{name}: {len(model['placements'])} placements, median error"
    f" {100 * model['median_error']:.1f}%, rank correlation {_rank(model)}",
    flush=True,
  )


def _rank(model: dict[str, Any]) -> str:
  rank = model["rank_correlation"]
  return "-" if rank is None else f"{rank:.3f}"


def print_table(models: dict[str, Any]) -> None:
  shown = table.Table(title="Simulated and measured steps")
  shown.add_column("model")
  heads = ("ops", "placements", "measured ms", "error", "90%", "bias", "rank")
  for column in heads:
    shown.add_column(column, justify="right")
  for name, model in models.items():
    took = [r["measured_us"] / 1e3 for r in model["placements"].values()]
    shown.add_row(
      name,
      str(model["ops"]),
      str(len(took)),
      f"{min(took):.0f} to {max(took):.0f}",
      f"{100 * model['median_error']:.1f}%",
      f"{100 * model['p90_error']:.1f}%",
      f"{100 * model['bias']:+.1f}%",
      _rank(model),
    )
  console.Console().print(shown)


def draw(models: dict[str, Any], path: pathlib.Path) -> None:
  """Predicted over measured; the grey band is 10% off."""
  figure = Figure(figsize=(5.5, 5), layout="constrained")
  axes = figure.subplots()
  for name, model in models.items():
    rows = model["placements"].values()
    label = f"{name}: {100 * model['median_error']:.0f}% off"
    axes.plot(
      [r["measured_us"] / 1e3 for r in rows],
      [r["predicted_us"] / 1e3 for r in rows],
      "o",
      ms=4,
      alpha=0.7,
      label=f"{label}, rank {_rank(model)}",
    )
  axes.set_xscale("log")
  axes.set_yscale("log")
  ends = np.array([min(axes.get_xlim()[0], axes.get_ylim()[0]), 0.0])
  ends[1] = max(axes.get_xlim()[1], axes.get_ylim()[1])
  axes.plot(ends, ends, color="black", lw=0.8)
  axes.fill_between(ends, 0.9 * ends, 1.1 * ends, color="0.85", zorder=0)
  axes.set_xlabel("measured step time (ms)")
  axes.set_ylabel("simulated step time (ms)")
  axes.legend(fontsize=8)
  figure.savefig(path, dpi=150)


if __name__ == "__main__":
  OPTIONS.run(main)
