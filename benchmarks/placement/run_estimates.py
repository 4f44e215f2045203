"""Seconds and errors of `tfplace.estimate` on ten models.

For each model of `models/reference.py`: seconds of an estimate on every GPU
preset, its parameters against the bytes that `model.summary()` counts, and its
step times and peaks against an extraction and simulation of their own for three
GPUs. Prints a table and writes JSON.

  python -m benchmarks.placement.run_estimates
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
_OUT = OPTIONS.out("estimates.json")


def measured_row(name: str) -> dict[str, Any]:
  """Estimates one model, and compares with the full simulation."""
  import tfplace
  from benchmarks.models import reference
  from tfplace.core.presets import cluster_preset

  trained = reference.MODELS[name]
  model = trained.build()
  began = time.perf_counter()
  found = tfplace.estimate(
    model,
    batch_size=trained.batch_size,
    allow_batch_statistics=trained.has_batch_statistics,
  )
  seconds = time.perf_counter() - began
  step = found.steps[0]
  cards = {card.name: card for card in step.cards}
  full = {}
  for gpu in _GPUS.value:
    cluster = cluster_preset(f"{gpu}x1")
    began = time.perf_counter()
    graph = tfplace.extract(model, cluster, batch_size=trained.batch_size)
    result = tfplace.place(tfplace.Problem(graph, cluster), "single")
    evaluation = result.evaluation
    full[gpu] = {
      "step_time_us": evaluation.step_time_us,
      "peak_memory_bytes": max(evaluation.peak_memory_bytes.values()),
      "estimated_step_time_us": cards[gpu].step_time_us,
      "estimated_peak_memory_bytes": cards[gpu].peak_memory_bytes,
      "seconds": time.perf_counter() - began,
    }
  weights = step.weights
  assert weights is not None
  return {
    "model": name,
    "about": trained.about,
    "ops": step.num_ops,
    "cards": len(step.cards),
    "seconds": seconds,
    "parameter_bytes": weights.trainable_bytes + weights.non_trainable_bytes,
    "summary_bytes": summary_bytes(model),
    "error": largest_error(full),
    "simulated": full,
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
  for column in ("model", "ops", "s", "parameters", "summary", "error"):
    grid.add_column(column, justify="right")
  for row in rows:
    grid.add_row(
      row["model"],
      f"{row['ops']:,}",
      f"{row['seconds']:.1f}",
      f"{row['parameter_bytes']:,.0f}",
      f"{row['summary_bytes']:,.0f}",
      f"{row['error']:.1%}",
    )
  console.Console(width=100).print(grid)


def main(_: flags.FlagValues) -> None:
  cli.load_tensorflow()
  from benchmarks.models import reference

  names = _MODELS.value or [*reference.MODELS]
  command.check_names("models", names, reference.MODELS)
  measured_row(names[0])  # The first use compiles the simulator.
  rows = []
  for name in names:
    rows.append(measured_row(name))
    print(name, f"{rows[-1]['seconds']:.1f} s", flush=True)
    write_json(_OUT.value, {"gpus": _GPUS.value, "rows": rows})
  print_table(rows)


if __name__ == "__main__":
  OPTIONS.run(main)
