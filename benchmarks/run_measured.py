"""Measured steps beside predicted ones, on this host's GPUs or on workers.

For each model, from the same weights, batch and devices: the user's own step
on one device, with and without XLA; `tf.distribute` (`MirroredStrategy` on
GPUs, `MultiWorkerMirroredStrategy` on workers); and placements of tfplace: one
device, the best by hand, and `auto` whole, in units that XLA compiles, and in
microbatches, found by alternating search and measurement as `tfplace-place
--measure` does. Losses before the first update and after the last show that all
compute the same.

  python -m benchmarks.run_measured --devices=workers:2
  python -m benchmarks.run_measured --devices=gpus --out=gpus.json

Workers need an idle core each.
"""

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from benchmarks import lib, user_step
from benchmarks.lib import Options
from tfplace import placers
from tfplace.bin import cli
from tfplace.errors import MeasurementError, TfplaceError
from tfplace.graph import OpGraph, Placement, Problem
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.recompute import RecomputeConfig
from tfplace.measure.calibrate.placements import home_devices
from tfplace.simulate import Simulator

if TYPE_CHECKING:
  from benchmarks.models import Trained
  from tfplace.extraction.traced import TracedStep
  from tfplace.measure.cluster import OpenCluster
  from tfplace.plan.search import Outcome

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
_AUTO_XLA = "auto with XLA"
_RECOMPUTED = "recomputed in less memory"
_LESS_MEMORY = 0.75  # of the peak of the step on one device
_WARMUP = 2
# Defaults on GPUs, chosen to end six models within 15 minutes; not timed yet.
_SHORT = {"budget_s": 5.0, "measure_s": 10.0, "rounds": 1}

OPTIONS = Options("run_measured", __doc__)
OPTIONS.add("devices", "workers:2", "gpus, gpus:N (logical ones) or workers:N.")
OPTIONS.add("models", [], "Models; the usual ones where left out.")
OPTIONS.add("microbatches", ["2", "4"], "Numbers of microbatches.")
OPTIONS.add("rounds", 3, "Times each step is run.", least=1)
OPTIONS.add("steps", 5, "Timed steps of each run.", least=1)
OPTIONS.add("recompute", True, "On GPUs, also run each step in less memory.")
OPTIONS.add("measure_s", 60.0, "Seconds of running steps per search.", least=0)
OPTIONS.add_search(30.0, "measured.json")


def models_of(devices: str) -> Mapping[str, "Trained"]:
  """The models for these devices: small ones for workers."""
  from benchmarks import models

  return models.SMALL if devices.startswith("workers") else models.MODELS


def main(values: flags.FlagValues) -> None:
  """Measures missing models; saves after each."""
  shorten(values)
  counts = lib.numbers("microbatches", values.microbatches, 2)
  seeds = lib.numbers("seeds", values.seeds)
  cli.load_tensorflow()
  from tfplace.measure.cluster import open_cluster
  from tfplace.measure.local.devices import leave_gpus

  known = models_of(values.devices)
  lib.check_names("models", values.models, known)
  if values.devices.startswith("gpus"):
    leave_gpus()  # Models are built here, and take all memory of a GPU.
  with open_cluster(values.devices) as live:
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
  usual = ON_GPUS if values.devices.startswith("gpus") else known
  for name in values.models or usual:
    run = Run(values, name, known[name], counts, seeds[0])
    memory_bytes = cluster.devices[0].memory_bytes
    saved.row(name, lambda r=run, m=memory_bytes: r.measure(m))
  print(tables(saved.found)["measured"], types_table(saved.found), sep="\n\n")


def shorten(values: flags.FlagValues) -> None:
  """Sets the flags that are not given to those of GPUs, if these measure."""
  for name, value in _SHORT.items() if values.devices[:4] == "gpus" else ():
    if not values[name].present:
      setattr(values, name, value)


@dataclasses.dataclass(frozen=True)
class Row:
  """A placement to run, and its predicted step.

  Attributes:
    traced: its step.
    placement: of it, in the problem with the costs that were fitted last.
    predicted_us: step time by these.
    peak_bytes: largest predicted peak of a device.
  """

  traced: "TracedStep"
  placement: Placement
  predicted_us: float
  peak_bytes: float


def alone(problem: Problem) -> Placement:
  """Every op on the first device that can run it."""
  row = home_devices(problem)[problem.group_of]
  return Placement(problem, row.astype(np.int32))


def _row(traced: "TracedStep", placement: Placement) -> Row:
  (found,) = Simulator(placement.problem).evaluate([placement])
  peak_bytes = max(found.peak_memory_bytes.values())
  return Row(traced, placement, found.step_time_us, peak_bytes)


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
    from tfplace.measure.cluster import open_cluster

    began = time.monotonic()
    data = batch(self.trained, self.seed)
    found = self._user_steps(data, memory_bytes)
    with open_cluster(self.values.devices) as live:
      rows: dict[str, Row] = {}
      types: dict[str, list[float]] = {}
      for count in (1, *self.counts):
        placed, by_type = self._placed(live, data, count)
        rows |= placed
        types = types or by_type
      rows |= {_AUTO_XLA: self._compiled(live, data)}
      times: dict[str, list[float]] = {label: [] for label in rows}
      for _ in range(self.values.rounds):
        for label, row in rows.items():
          extra = self._run(live, label, row)
          times[label] += extra["step_times_us"]
          found[label] = {
            **_summary(times[label], _losses(row, extra)),
            "predicted_us": row.predicted_us,
          }
          self._tell(label, found)
    if self.values.recompute and self.values.devices.startswith("gpus"):
      peak_bytes = rows[_PLACED_ALONE].peak_bytes
      try:
        found[_RECOMPUTED] = self._recomputed(data, _LESS_MEMORY * peak_bytes)
      except TfplaceError as error:  # such as a step without enough to drop
        found[_RECOMPUTED] = {"error": str(error)}
    seconds = time.monotonic() - began
    return {"steps": found, "types": types, "seconds": seconds}

  def _recomputed(
    self, data: dict[str, np.ndarray], memory_bytes: float
  ) -> dict[str, Any]:
    """Runs the step with recomputation on one device with less memory."""
    from tfplace.measure.cluster import open_cluster

    with open_cluster("gpus:1", memory_bytes=memory_bytes) as live:
      every = RecomputeConfig(everything=True)
      traced = self._traced(data, VariantConfig(1, recompute=every))
      row = _row(traced, alone(self._profiled(live, traced)[1]))
      extra = self._run(live, _RECOMPUTED, row)
    return {
      **_summary(extra["step_times_us"], _losses(row, extra)),
      "predicted_us": row.predicted_us,
      "memory_bytes": memory_bytes,
      "predicted_peak_bytes": row.peak_bytes,
      "high_water_bytes": extra.get("high_water_bytes", {}),
    }

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
        self._tell(way, found)
    return found

  def _tell(self, label: str, found: Mapping[str, Any]) -> None:
    """Prints a step at once; its row is saved after the last one."""
    print(f"{self.name}, {label}: {json.dumps(found[label])}", flush=True)

  def _traced(
    self, data: dict[str, np.ndarray], microbatches: VariantConfig
  ) -> "TracedStep":
    from tfplace.variants.keras_step import trace_keras

    model = self.trained.build()
    model.set_weights([data[f"weight{i}"] for i in range(len(model.weights))])
    return trace_keras(model, sample=sample(data), microbatches=microbatches)

  def _profiled(
    self,
    live: "OpenCluster",
    traced: "TracedStep",
    compile_units: bool = False,
  ) -> tuple[Problem, Problem]:
    """The problem by estimated and by measured costs."""
    from tfplace import cost
    from tfplace.plan.live_step import guesses

    graph = cost.op_graph(traced, live.cluster, compile_units=compile_units)
    estimated = Problem(graph, live.cluster)
    step = live.step(traced, measure_s=self.values.measure_s)
    return estimated, step.profiled(estimated, guesses)

  def _placed(
    self, live: "OpenCluster", data: dict[str, np.ndarray], count: int
  ) -> tuple[dict[str, Row], dict[str, list[float]]]:
    """The best placement that search and measurement find, and by hand.

    Also returns predicted and measured times by op type.
    """
    allowed = self.trained.has_batch_statistics
    traced = self._traced(
      data, VariantConfig(count, allow_batch_statistics=allowed)
    )
    estimated, problem = self._profiled(live, traced)
    plan = self._searched(live, traced, problem)
    label = _AUTO if count == 1 else f"{_AUTO} in {count}"
    chosen = {label: plan.best.placement}
    by_hand = self._by_hand(plan.problem)
    if by_hand is not None:
      chosen[_BY_HAND if count == 1 else f"{_BY_HAND} in {count}"] = by_hand
    if count == 1:
      chosen[_PLACED_ALONE] = alone(plan.problem)
    rows = {label: _row(traced, found) for label, found in chosen.items()}
    kind = live.cluster.devices[0].kind
    return rows, by_type(estimated.graph, problem.graph, kind)

  def _compiled(self, live: "OpenCluster", data: dict[str, np.ndarray]) -> Row:
    """The best placement of the step in units that XLA compiles."""
    traced = self._traced(data, VariantConfig())
    _, problem = self._profiled(live, traced, compile_units=True)
    plan = self._searched(live, traced, problem)
    return _row(traced, plan.best.placement)

  def _searched(
    self, live: "OpenCluster", traced: "TracedStep", problem: Problem
  ) -> "Outcome":
    """The plan that search and measurement find."""
    from tfplace.plan.config import PlanConfig
    from tfplace.plan.measured import search_measured

    step = live.step(traced, measure_s=self.values.measure_s)
    config = PlanConfig("auto", self.values.budget_s, self.seed, gap=0.0)
    return search_measured(problem, config, step)

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
    self, live: "OpenCluster", label: str, row: Row
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


def by_type(
  predicted: OpGraph, measured: OpGraph, kind: str
) -> dict[str, list[float]]:
  """Returns op type -> ops, predicted and measured us, the longest first."""
  sums: dict[str, list[float]] = {}
  times = predicted.time_us[kind], measured.time_us[kind]
  for name, *us in zip(predicted.types, *times, strict=True):
    if np.isfinite(us).all() and any(us):
      values = zip(sums.get(name, (0, 0.0, 0.0)), (1, *us), strict=True)
      sums[name] = [float(old + new) for old, new in values]
  return dict(sorted(sums.items(), key=lambda item: -item[1][2]))


def _losses(row: Row, extra: Mapping[str, Any]) -> list[float]:
  key = row.traced.fetches[0]
  return [extra[which][key] for which in ("fetches", "last_fetches")]


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


def sample(data: Mapping[str, np.ndarray]) -> tuple[Any, np.ndarray]:
  """Returns x and y of a `batch`."""
  x = [data[name] for name in sorted(data) if name.startswith("x")]
  return (x[0] if len(x) == 1 else x), data["y"]


def _summary(times: list[float], losses: list[float]) -> dict[str, Any]:
  quartiles = [float(q) for q in np.percentile(times, [25, 75])]
  median = statistics.median(times)
  return {"measured_us": median, "quartiles_us": quartiles, "losses": losses}


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns measured (predicted) milliseconds of each model's steps."""
  heads = ("model", *user_step.WAYS, _BY_HAND, _AUTO, _AUTO_XLA)
  heads = (*heads, "microbatched", _RECOMPUTED, "error", "losses differ by")
  lines = []
  for name, row in found["rows"].items():
    steps = {k: s for k, s in row["steps"].items() if "error" not in s}
    hand = _fastest(steps, lambda label: label.startswith(_BY_HAND))
    split = _fastest(steps, lambda label: label.startswith(f"{_AUTO} in "))
    labels = [*user_step.WAYS, hand, _AUTO, _AUTO_XLA, split, _RECOMPUTED]
    errors = [
      abs(step["predicted_us"] / step["measured_us"] - 1)
      for step in steps.values()
      if "predicted_us" in step
    ]
    error = f"{100 * statistics.median(errors):.0f}%" if errors else "-"
    losses = np.array([step["losses"] for step in steps.values()])
    differ = np.max(np.ptp(losses, axis=0) / np.abs(losses).max(axis=0))
    cells = [_shown(steps.get(k)) for k in labels]
    lines.append([name, *cells, error, f"{differ:.0e}"])
  text = f"{lib.markdown(heads, lines)}\n\n{lib.caption(found)}"
  return {"measured": text}


# Classes of kernels of docs/costs.md by beginnings of op types; else "memory".
_CLASSES = {
  "products": ("MatMul", "BatchMatMul", "Einsum"),
  "convolutions": ("Conv2D", "Conv3D"),
  "recurrent": ("CudnnRNN",),
  "rows": ("Softmax", "LogSoftmax", "SparseSoftmax"),
  "units": ("Unit",),
}


def types_table(found: Mapping[str, Any]) -> str:
  """Returns ms of kernel classes and of the longest op types in a table.

  Estimated and measured times of all rows are added up.
  """
  types: dict[str, np.ndarray] = {}
  classes: dict[str, np.ndarray] = {}
  for row in found["rows"].values():
    for kind, sums in row.get("types", {}).items():
      types[kind] = types.get(kind, np.zeros(3)) + sums
      named = (c for c, ops in _CLASSES.items() if kind.startswith(ops))
      name = f"all {next(named, 'memory')}"
      classes[name] = classes.get(name, np.zeros(3)) + sums
  longest = [
    each
    for table, most in ((classes, None), (types, 15))
    for each in sorted(table.items(), key=lambda item: -item[1][2])[:most]
  ]
  lines = [
    [kind, f"{n:.0f}", f"{p / 1e3:.2f}", f"{m / 1e3:.2f}", f"{p / m:.2f}"]
    for kind, (n, p, m) in longest
    if m
  ]
  heads = ("kernels", "ops", "estimated", "measured", "ratio")
  return lib.markdown(heads, lines)


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
