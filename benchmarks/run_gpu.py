"""One GPU beside its cost model.

For whole Keras steps in fp32, TF32 and bf16: the user's step without and with
XLA, the step as tfplace measures it, and what the cost model predicts, in all
and by op type. Further: figures of the card (products, a copy, a launch),
memory limits and links of two logical GPUs.

  python -m benchmarks.run_gpu --out=gpu.json
  python -m benchmarks.run_gpu --models=gpt_medium --precisions=tf32 --noxla
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from benchmarks import lib, run_measured
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.errors import MeasurementError
from tfplace.measure.local import host

if TYPE_CHECKING:
  import keras

  from benchmarks.models import Trained
  from tfplace.graph import Cluster, Problem

PRECISIONS = ("fp32", "tf32", "bf16")

OPTIONS = Options("run_gpu", __doc__)
OPTIONS.add("models", ["gpt_medium", "resnet50_gn"], "Models to train.")
OPTIONS.add("precisions", [*PRECISIONS], "Precisions of the steps.")
OPTIONS.add("xla", True, "Also compile the user's step with XLA.")
OPTIONS.add("links", True, "Also measure two logical GPUs.")
OPTIONS.add("steps", 10, "Timed steps.", least=1)
OPTIONS.add("out", str(lib.RESULTS / "gpu.json"), "JSON file to write.")


def main(values: flags.FlagValues) -> None:
  """Measures missing rows; saves after each.

  Raises:
    MeasurementError: TensorFlow sees no GPU.
  """
  from benchmarks import models

  known = models.SMALL | models.MODELS
  lib.check_names("models", values.models, known)
  lib.check_names("precisions", values.precisions, PRECISIONS)
  cli.load_tensorflow()
  import tensorflow as tf

  if not tf.config.list_physical_devices("GPU"):
    raise MeasurementError("; ".join(host.why_no_gpu()))
  saved = lib.Rows(values.out, {"steps": values.steps}, policy=None)
  failed = []

  def attempt(key: str, measure: Callable[[], dict[str, Any]]) -> None:
    try:
      saved.row(key, measure)
    except Exception as error:  # the other rows are worth having
      failed.append(key)
      print(f"{key} failed: {type(error).__name__}: {error}", flush=True)

  if values.links:  # in a process of its own, before this one takes the GPU
    attempt("two logical GPUs", _two_logical)
  cluster = _one_device()
  attempt("card", lambda: _card(cluster))
  for name in values.models:
    for precision in values.precisions:
      attempt(
        f"{name} {precision}",
        lambda n=name, p=precision: _steps(known[n], p, cluster, values),
      )
  print(table(saved.found))
  if failed:
    raise cli.UsageError(f"failed: {', '.join(failed)}")


def _two_logical() -> dict[str, Any]:
  """Memory limits of two logical GPUs, and links between all devices."""
  from tfplace.formats import cluster as cluster_format
  from tfplace.measure.cluster import open_cluster

  began = time.monotonic()
  with open_cluster("gpus:2") as live:
    found = cluster_format.cluster_to_json(live.cluster)
  return {"seconds": time.monotonic() - began, "cluster": found}


def _one_device() -> "Cluster":
  """The first device of this process, and its host."""
  from tfplace.graph import Cluster
  from tfplace.plan.local_devices import local_cluster

  found = local_cluster()
  gpu, *rest = found.devices
  kept = (gpu, *(device for device in rest if device.is_cpu))
  names = {device.name for device in kept}
  links = tuple(link for link in found.links if {link.src, link.dst} <= names)
  return Cluster("one", kept, links)


def _card(cluster: "Cluster") -> dict[str, Any]:
  """The data sheet of the device beside what it reaches."""
  from tfplace.measure.local import gpus

  device = cluster.devices[0]
  hardware = device.extra["hardware"]
  capability = hardware["environment"]["architecture"]
  measured, launch_us = gpus.measured_card(device.name, "it", capability)
  return {
    "product": device.extra.get("product", device.name),
    "memory_bytes": device.memory_bytes,
    "hardware": dict(hardware),
    "measured": measured,
    "launch_us": launch_us,
  }


def _steps(
  trained: "Trained",
  precision: str,
  cluster: "Cluster",
  values: flags.FlagValues,
) -> dict[str, Any]:
  """Times a model's step in a precision, and predicts it."""
  import keras
  import tensorflow as tf

  tf.config.experimental.enable_tensor_float_32_execution(precision != "fp32")
  policy = "mixed_bfloat16" if precision == "bf16" else "float32"
  keras.mixed_precision.set_global_policy(policy)
  try:
    model = trained.build()
    x, y = run_measured.sample(run_measured.batch(trained, seed=0))
    row: dict[str, Any] = {"batch_size": trained.batch_size}
    row |= _predicted(model, x, y, cluster, values)
    row["user_us"] = _user_us(model, x, y, values.steps)
    if values.xla:
      model.compile(model.optimizer, model.loss, jit_compile=True)
      began = time.monotonic()
      try:
        row["user_xla_us"] = _user_us(model, x, y, values.steps)
        row["xla_s"] = time.monotonic() - began
      except tf.errors.OpError as error:  # XLA lacks an op
        row["xla_error"] = error.message[:300]
  finally:
    keras.mixed_precision.set_global_policy("float32")
    tf.config.experimental.enable_tensor_float_32_execution(True)
  return row


def _user_us(model: "keras.Model", x: Any, y: Any, steps: int) -> float:
  """Median time of the step as `fit` runs it."""
  import tensorflow as tf

  model.make_train_function(force=True)
  x = tuple(x) if isinstance(x, list) else x
  batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
  times = []
  for _ in range(steps + 2):
    began = time.perf_counter()
    logs = model.train_function(batches)
    tf.nest.map_structure(lambda value: value.numpy(), logs)
    times.append(1e6 * (time.perf_counter() - began))
  return statistics.median(times[2:])


def _predicted(
  model: "keras.Model",
  x: Any,
  y: Any,
  cluster: "Cluster",
  values: flags.FlagValues,
) -> dict[str, Any]:
  """Predicted times beside measured ones, in all and by op type."""
  from tfplace import cost
  from tfplace.graph import Problem
  from tfplace.plan import local_step
  from tfplace.variants.keras_step import trace_keras

  traced = trace_keras(model, sample=(x, y))
  problem = Problem(cost.op_graph(traced, cluster), cluster)
  measured = local_step.measured_problem(problem, traced, seconds=10.0)
  ran = local_step.measure(traced, run_measured.alone(problem), values.steps)
  predicted_us, peak_bytes = _simulated(problem)
  units = cost.op_graph(traced, cluster, compile_units=True)
  return {
    "predicted_us": predicted_us,
    "predicted_xla_us": _simulated(Problem(units, cluster))[0],
    "measured_us": ran.step_time_us,
    "predicted_peak_bytes": peak_bytes,
    "high_water_bytes": ran.extra.get("high_water_bytes", {}),
    "op_overhead_us": measured.cluster.devices[0].op_overhead_us,
    "types": run_measured.by_type(
      problem.graph, measured.graph, cluster.devices[0].kind
    ),
  }


def _simulated(problem: "Problem") -> tuple[float, float]:
  """Step time and peak memory with every op at home."""
  from tfplace.simulate import Simulator

  (found,) = Simulator(problem).evaluate([run_measured.alone(problem)])
  name = problem.cluster.devices[0].name
  return found.step_time_us, found.peak_memory_bytes[name]


def table(found: Mapping[str, Any]) -> str:
  """Returns a row per step, in ms, and a row per op type of all steps."""
  heads = ("step", "predicted", "measured", "user's", "predicted XLA", "XLA")
  keys = ("predicted_us", "measured_us", "user_us", "predicted_xla_us")
  lines = []
  for name, row in found["rows"].items():
    if "types" in row:
      us = [row.get(key) for key in (*keys, "user_xla_us")]
      cells = ("-" if t is None else f"{t / 1e3:.2f}" for t in us)
      lines.append([name, *cells])
  types = run_measured.types_table(found)
  return "\n\n".join([lib.markdown(heads, lines), types, lib.caption(found)])


if __name__ == "__main__":
  OPTIONS.run(main)
