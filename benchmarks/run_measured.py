"""Measured steps beside predicted ones, on this host's GPUs or on workers.

For each model, from the same weights, batch and devices: the user's own step
on one device, with and without XLA; `tf.distribute` (`MirroredStrategy` on
GPUs, `MultiWorkerMirroredStrategy` on workers); and placements of tfplace: one
device, the best by hand, and `auto` whole and in microbatches, found by
alternating search and measurement as `tfplace-place --measure` does. Losses
before the first update and after the last show that all compute the same.

  python -m benchmarks.run_measured --devices=workers:2
  python -m benchmarks.run_measured --devices=gpus --out=gpus.json

Workers need an idle core each.
"""

import dataclasses
import os
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from benchmarks import lib, user_step
from benchmarks.lib import Options
from tfplace import placers
from tfplace.bin import cli
from tfplace.core import Placement, Problem
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.errors import MeasurementError, TfplaceError
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from benchmarks.models import Trained
  from tfplace import measure
  from tfplace.extraction.traced import TracedStep

ON_GPUS = (
  "gpt_medium",
  "bert_base",
  "vit",
  "resnet50_gn",
  "unet",
  "translator",
)
_RULES = ("expert", "metis", "heft", "data_parallel", "pipeline", "hybrid")
_PLACED_ALONE, _BY_HAND, _AUTO = "placed on one device", "by hand", "auto"
_WARMUP = 2

OPTIONS = Options("run_measured", __doc__)
OPTIONS.add("devices", "workers:2", "gpus, gpus:N (logical ones) or workers:N.")
OPTIONS.add("models", [], "Models; all where left out.")
OPTIONS.add("microbatches", ["2", "4"], "Numbers of microbatches.")
OPTIONS.add("rounds", 3, "Times each step is run.", least=1)
OPTIONS.add("steps", 5, "Timed steps of each run.", least=1)
OPTIONS.add("measure_s", 60.0, "Seconds of running steps per search.", least=0)
OPTIONS.add_search(30.0, "measured.json")


def models_of(devices: str) -> Mapping[str, "Trained"]:
  """The models for these devices: small ones for workers."""
  from benchmarks import models

  if devices.startswith("workers"):
    return models.SMALL
  return {name: models.MODELS[name] for name in ON_GPUS}


def main(values: flags.FlagValues) -> None:
  """Measures missing models; saves after each."""
  counts = lib.numbers("microbatches", values.microbatches, 2)
  seeds = lib.numbers("seeds", values.seeds)
  cli.load_tensorflow()
  from tfplace import measure

  known = models_of(values.devices)
  lib.check_names("models", values.models, known)
  with measure.open_cluster(values.devices) as live:
    cluster = live.cluster
  if (load := os.getloadavg()[0]) > 0.5:
    print(f"warning: the load is {load:.1f}: steps will be too long")
  saved = lib.Rows(
    values.out,
    {"devices": values.devices, "budget_s": values.budget_s},
    seeds=seeds[:1],
    costs=None,
    policy="ordered",
  )
  for name in values.models or known:
    run = Run(values, name, known[name], counts, seeds[0])
    memory_bytes = cluster.devices[0].memory_bytes
    saved.row(name, lambda r=run, m=memory_bytes: r.measure(m))
  print(tables(saved.found)["measured"])


@dataclasses.dataclass(frozen=True)
class Row:
  """A placement to run, and its predicted step.

  Attributes:
    traced: its step.
    placement: of it, in the problem with the costs that were fitted last.
    predicted_us: step time by these.
  """

  traced: "TracedStep"
  placement: Placement
  predicted_us: float


@dataclasses.dataclass(frozen=True)
class Run:
  """One model on the devices of the flags."""

  values: flags.FlagValues
  name: str
  trained: "Trained"
  counts: list[int]
  seed: int

  def measure(self, memory_bytes: float) -> dict[str, Any]:
    """Returns label -> times and losses of its steps, or its error."""
    from tfplace import measure

    data = batch(self.trained, self.seed)
    found = self._user_steps(data, memory_bytes)
    with measure.open_cluster(self.values.devices) as live:
      rows: dict[str, Row] = {}
      for count in (1, *self.counts):
        rows |= self._placed(live, data, count)
      times: dict[str, list[float]] = {label: [] for label in rows}
      for _ in range(self.values.rounds):
        for label, row in rows.items():
          extra = self._run(live, label, row)
          times[label] += extra["step_times_us"]
          key = row.traced.fetches[0]
          losses = [extra[which][key] for which in ("fetches", "last_fetches")]
          found[label] = {
            **_summary(times[label], losses),
            "predicted_us": row.predicted_us,
          }
    return {"steps": found}

  def _user_steps(
    self, data: dict[str, np.ndarray], memory_bytes: float
  ) -> dict[str, Any]:
    """The user's own steps, before tfplace's processes take the devices."""
    found: dict[str, Any] = {}
    times: dict[str, list[float]] = {way: [] for way in user_step.WAYS}
    for _ in range(self.values.rounds):
      for way in user_step.WAYS:
        try:
          steps = user_step.run(
            self.name,
            data,
            way=way,
            devices=self.values.devices,
            memory_bytes=memory_bytes,
            warmup=_WARMUP,
            steps=self.values.steps,
          )
        except MeasurementError as error:  # XLA lacks an op, or NCCL a GPU.
          found[way] = {"error": str(error)}
        else:
          times[way] += steps.step_us
          found[way] = _summary(times[way], steps.losses)
    return found

  def _placed(
    self, live: "measure.OpenCluster", data: dict[str, np.ndarray], count: int
  ) -> dict[str, Row]:
    """The best placement that search and measurement find, and by hand."""
    from tfplace.extraction import trace_keras
    from tfplace.plan import PlanConfig, sources
    from tfplace.plan.live_step import LiveStep
    from tfplace.plan.measured import search_measured

    model = self.trained.build()
    model.set_weights([data[f"weight{i}"] for i in range(len(model.weights))])
    traced = trace_keras(
      model,
      sample=_sample(data),
      microbatches=MicrobatchConfig(
        count, allow_batch_statistics=self.trained.has_batch_statistics
      ),
    )
    problem = Problem(sources.op_graph(traced, live.cluster), live.cluster)
    step = LiveStep(live, traced, measure_s=self.values.measure_s)
    config = PlanConfig("auto", self.values.budget_s, self.seed, gap=0.0)
    plan = search_measured(problem, config, step)
    label = _AUTO if count == 1 else f"{_AUTO} in {count}"
    chosen = {label: plan.best.placement}
    by_hand = self._by_hand(plan.problem)
    if by_hand is not None:
      chosen[_BY_HAND if count == 1 else f"{_BY_HAND} in {count}"] = by_hand
    if count == 1:
      alone = np.zeros(problem.graph.num_ops, np.int32)
      chosen[_PLACED_ALONE] = Placement(plan.problem, alone)
    simulator = Simulator(plan.problem)
    return {
      label: Row(traced, found, simulator.evaluate([found])[0].step_time_us)
      for label, found in chosen.items()
    }

  def _by_hand(self, problem: Problem) -> Placement | None:
    """The best rule by the fitted costs."""
    found = []
    for strategy in _RULES:
      try:
        found.append(placers.place(problem, strategy, seed=self.seed))
      except TfplaceError:  # no rules for this model, or of split steps only
        continue
    best = min(found, key=lambda r: r.evaluation.step_time_us, default=None)
    return None if best is None else best.placement

  def _run(
    self, live: "measure.OpenCluster", label: str, row: Row
  ) -> Mapping[str, Any]:
    """Runs one placement once.

    Raises:
      MeasurementError: it could not be run.
    """
    harness = live.harness(
      row.placement.problem,
      row.traced,
      steps=self.values.steps,
      warmup=_WARMUP,
      traced_steps=0,
      phase_s=np.inf,  # as many steps as the others, for their losses
    )
    (found,) = harness.evaluate([row.placement])
    if "error" in found.extra:
      raise MeasurementError(f"{label}: {found.extra['error']}")
    return found.extra


def batch(trained: "Trained", seed: int) -> dict[str, np.ndarray]:
  """Returns "x0", "x1", ..., "y", and the "weight0", ... of a model."""
  import keras

  keras.utils.set_random_seed(seed)
  model, rng = trained.build(), np.random.default_rng(seed)
  found = {}
  for i, tensor in enumerate(model.inputs):
    shape = (trained.batch_size, *tensor.shape[1:])
    whole = "int" in tensor.dtype
    value = rng.integers(0, 2, shape) if whole else rng.normal(size=shape)
    found[f"x{i}"] = value.astype(tensor.dtype)
  shape = (trained.batch_size, *model.output_shape[1:-1])
  found["y"] = rng.integers(0, 2, shape).astype(np.int32)
  weights = {f"weight{i}": w for i, w in enumerate(model.get_weights())}
  return {**found, **weights}


def _sample(data: Mapping[str, np.ndarray]) -> tuple[Any, np.ndarray]:
  x = [data[name] for name in sorted(data) if name.startswith("x")]
  return (x[0] if len(x) == 1 else x), data["y"]


def _summary(times: list[float], losses: list[float]) -> dict[str, Any]:
  quartiles = [float(q) for q in np.percentile(times, [25, 75])]
  median = statistics.median(times)
  return {"measured_us": median, "quartiles_us": quartiles, "losses": losses}


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns measured (predicted) milliseconds of each model's steps."""
  heads = ("model", *user_step.WAYS, _BY_HAND, _AUTO, "microbatched", "error")
  lines = []
  for name, row in found["rows"].items():
    steps = {k: s for k, s in row["steps"].items() if "error" not in s}
    hand = _fastest(steps, lambda label: label.startswith(_BY_HAND))
    split = _fastest(steps, lambda label: label.startswith(f"{_AUTO} in "))
    labels = [*user_step.WAYS, hand, _AUTO, split]
    errors = [
      abs(step["predicted_us"] / step["measured_us"] - 1)
      for step in steps.values()
      if "predicted_us" in step
    ]
    error = f"{100 * statistics.median(errors):.0f}%" if errors else "-"
    lines.append([name, *(_shown(steps.get(k)) for k in labels), error])
  text = f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"
  return {"measured": text}


def _fastest(
  steps: Mapping[str, dict], is_wanted: Callable[[str], bool]
) -> str:
  wanted = filter(is_wanted, steps)
  return min(wanted, key=lambda k: steps[k]["measured_us"], default="")


def _shown(step: Mapping[str, Any] | None) -> str:
  if step is None:
    return "-"
  predicted = step.get("predicted_us")
  more = "" if predicted is None else f" ({predicted / 1e3:.1f})"
  return f"{step['measured_us'] / 1e3:.1f}{more}"


if __name__ == "__main__":
  OPTIONS.run(main)
