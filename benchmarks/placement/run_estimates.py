"""Seconds and errors of `tfplace.estimate` on ten models.

For each model of `models/reference.py`: seconds of an estimate on every GPU
preset, its parameters against the bytes that `model.summary()` counts, and its
step times and peaks against an extraction and simulation of their own for three
GPUs. With a multiple of the batch, few GPUs hold the step, and its microbatches
on one GPU are compared, too. Prints a table and writes JSON.

  python -m benchmarks.placement.run_estimates
  python -m benchmarks.placement.run_estimates --times=8
"""

import time
from typing import Any

from absl import flags
from rich import console, table

from benchmarks.lib import command
from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.formats.json_file import write_json

OPTIONS = Options("run_estimates", __doc__)
_MODELS = OPTIONS.add("models", [], "Models of models/reference.py; all.")
_GPUS = OPTIONS.add(
  "gpus", ["p100", "v100", "a100"], "GPUs that are simulated by themselves."
)
_TIMES = OPTIONS.add("times", 1, "Multiple of the models' batch.")
_OUT = OPTIONS.out("estimates.json")


def measured_row(name: str) -> dict[str, Any]:
  """Estimates one model, and compares with the full simulation."""
  import tfplace
  from benchmarks.models import reference
  from tfplace.core.presets import cluster_preset

  trained = reference.MODELS[name]
  model, batch_size = trained.build(), _TIMES.value * trained.batch_size
  began, cpu_began = time.perf_counter(), time.process_time()
  found = tfplace.estimate(
    model,
    batch_size=batch_size,
    allow_batch_statistics=trained.has_batch_statistics,
  )
  seconds = time.perf_counter() - began
  cpu_seconds = time.process_time() - cpu_began
  step = found.steps[0]
  cards = {card.name: card for card in step.cards}
  full = {}
  for gpu in _GPUS.value:
    cluster = cluster_preset(f"{gpu}x1")
    began = time.perf_counter()
    graph = tfplace.extract(model, cluster, batch_size=batch_size)
    full[gpu] = compared(graph, cluster, cards[gpu])
    full[gpu]["seconds"] = time.perf_counter() - began
    fit = cards[gpu].smallest_of("microbatches")
    if fit is not None and fit.num_devices == 1 and fit.microbatches > 1:
      graph = tfplace.extract(
        model,
        cluster,
        batch_size=batch_size,
        microbatches=fit.microbatches,
        max_in_flight=1,
        allow_batch_statistics=trained.has_batch_statistics,
      )
      full[f"{gpu} in {fit.microbatches}"] = compared(graph, cluster, fit)
  weights = step.weights
  assert weights is not None
  return {
    "model": name,
    "about": trained.about,
    "ops": step.num_ops,
    "cards": len(step.cards),
    "batch_size": batch_size,
    "seconds": seconds,
    "cpu_seconds": cpu_seconds,
    "parameter_bytes": weights.trainable_bytes + weights.non_trainable_bytes,
    "summary_bytes": summary_bytes(model),
    "error": largest_error(full),
    "simulated": full,
  }


def compared(graph: Any, cluster: Any, estimated: Any) -> dict[str, Any]:
  """Simulates a step on one GPU, and returns it beside its estimate."""
  from tfplace.plan.estimate import cards, fits

  one = fits.on_one_device(graph, cards.cluster_card(cluster))
  return {
    "step_time_us": one.schedule.step_time_us,
    "peak_memory_bytes": one.peak_memory_bytes,
    "estimated_step_time_us": estimated.step_time_us,
    "estimated_peak_memory_bytes": estimated.peak_memory_bytes,
  }


def summary_bytes(model: Any) -> float:
  """Returns the bytes of the parameters as `model.summary()` counts them."""
  from keras.src.utils import summary_utils

  sizes = map(
    summary_utils.weight_memory_size,
    (model.trainable_weights, model.non_trainable_weights),
  )
  return float(sum(sizes))


def largest_error(full: dict[str, dict[str, float]]) -> float:
  """Returns the largest relative error of a step time or a peak."""
  return max(
    abs(row[f"estimated_{key}"] / row[key] - 1)
    for row in full.values()
    for key in ("step_time_us", "peak_memory_bytes")
  )


def print_table(rows: list[dict[str, Any]]) -> None:
  """Prints a row per model."""
  grid = table.Table(title="Estimates on every GPU preset")
  columns = ("model", "batch", "ops", "s", "CPU s", "parameters", "error")
  for column in columns:
    grid.add_column(column, justify="right")
  for row in rows:
    grid.add_row(
      row["model"],
      str(row["batch_size"]),
      f"{row['ops']:,}",
      f"{row['seconds']:.1f}",
      f"{row['cpu_seconds']:.1f}",
      f"{row['parameter_bytes']:,.0f}",
      f"{row['error']:.1%}",
    )
  console.Console(width=100).print(grid)


def main(_: flags.FlagValues) -> None:
  cli.load_tensorflow()
  import tfplace
  from benchmarks.models import reference

  names = _MODELS.value or [*reference.MODELS]
  command.check_names("models", names, reference.MODELS)
  tfplace.estimate("rnnlm_2")  # The first use compiles the simulator.
  rows = []
  for name in names:
    rows.append(measured_row(name))
    print(name, f"{rows[-1]['seconds']:.1f} s", flush=True)
    write_json(_OUT.value, {"gpus": _GPUS.value, "rows": rows})
  print_table(rows)


if __name__ == "__main__":
  OPTIONS.run(main)
