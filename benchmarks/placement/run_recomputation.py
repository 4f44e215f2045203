"""Batches that do not fit: recomputation, microbatches, and host memory.

For each model of `models/reference.py` and each cluster: the largest batch B
that fits as it is, and then the step of `--times` B in each variant. `ratio` is
time per example over that of the step of B. On one GPU the placement is that
GPU, with as many activations on the host as it takes where a variant allows it,
and one microbatch is in flight; on several, `--strategy` searches. Prints a
table, and writes JSON after each row; rows of the file are kept.

  python -m benchmarks.placement.run_recomputation
"""

import dataclasses
import time
from typing import Any

from absl import flags
from rich import console, table

from benchmarks.lib import command, saved_rows
from benchmarks.lib.command import Options
from tfplace.bin import cli
from tfplace.errors import InfeasibleError

OPTIONS = Options("run_recomputation", __doc__)
_MODELS = OPTIONS.add(
  "models",
  ["bert_base", "gpt_medium", "resnet50_gn"],
  "Models of models/reference.py.",
)
_CLUSTERS = OPTIONS.add("clusters", ["a100x1", "v100x4"], "Cluster presets.")
_TIMES = OPTIONS.add("times", 2, "Multiple of the largest batch that fits.")
_BUDGET_S = OPTIONS.add("budget_s", 5.0, "Seconds of each search.")
_STRATEGY = OPTIONS.add("strategy", "auto", "Placer on several GPUs.")
_OUT = OPTIONS.out("recomputation.json")

# Name of a variant -> microbatches, what is recomputed, what may wait.
VARIANTS = {
  "kept": (1, "none", "none"),
  "recomputed": (1, "all", "none"),
  "4 microbatches": (4, "none", "none"),
  "4 microbatches, recomputed": (4, "all", "none"),
  "host memory": (1, "none", "all"),
  "host memory, recomputed": (1, "all", "all"),
}


def placed(
  model: Any, cluster: Any, batch_size: int, variant: str, allowed: bool
) -> dict[str, Any]:
  """Places one variant; `step_time_us` is None where nothing fits."""
  import tfplace

  count, recompute, offload = VARIANTS[variant]
  gpus = sum(device.kind != "CPU" for device in cluster.devices)
  began = time.perf_counter()
  graph = tfplace.extract(
    model,
    cluster,
    batch_size=batch_size,
    microbatches=count,
    max_in_flight=1 if gpus == 1 and count > 1 else None,
    allow_batch_statistics=allowed,
    recompute=recompute,
    offload=offload,
  )
  row: dict[str, Any] = {"ops": graph.num_ops, "step_time_us": None}
  problem = tfplace.Problem(graph, cluster)
  if gpus == 1:
    return {
      **row,
      **on_the_gpu(problem),
      "seconds": time.perf_counter() - began,
    }
  try:
    found = tfplace.place(
      problem,
      _STRATEGY.value,
      budget_s=_BUDGET_S.value,
      seed=0,
    )
  except InfeasibleError as error:
    row["why"] = str(error)
  else:
    peaks = found.evaluation.peak_memory_bytes
    row["step_time_us"] = found.evaluation.step_time_us
    row["peak_memory_bytes"] = max(peaks.values())
  return {**row, "seconds": time.perf_counter() - began}


def on_the_gpu(problem: Any) -> dict[str, Any]:
  """Places a step on the GPU alone; the host, which has the memory, is none."""
  import numpy as np
  from tfplace.placers.offload import offer_offloaded

  from tfplace.core.budget import Budget
  from tfplace.placers.groups import GroupGraph
  from tfplace.placers.tracker import Tracker
  from tfplace.simulate import Simulator

  kinds = [device.kind != "CPU" for device in problem.cluster.devices]
  groups = GroupGraph(problem)
  gpu = kinds.index(True)
  wanted = groups.nearest(np.full(groups.num_groups, gpu))
  tracker = Tracker("one", problem, Simulator(problem), Budget(60.0))
  found = tracker.offer(groups.expand(wanted))
  if not found.feasible:
    found = offer_offloaded(tracker, groups, wanted) or found
  if tracker.best is not None:
    found = tracker.best[1]
  return {
    "step_time_us": found.step_time_us if found.feasible else None,
    "peak_memory_bytes": found.peak_memory_bytes[
      problem.cluster.devices[gpu].name
    ],
  }


def measured_row(name: str, preset: str) -> dict[str, Any]:
  """Finds the largest batch, and places a multiple of it in each variant."""
  import tfplace
  from benchmarks.models import reference
  from tfplace.core.presets import cluster_preset

  trained = reference.MODELS[name]
  model, cluster = trained.build(), cluster_preset(preset)
  found = tfplace.largest_batch(model, preset, batch_size=trained.batch_size)
  allowed = trained.has_batch_statistics
  base = placed(model, cluster, found.batch_size, "kept", allowed)
  times = _TIMES.value
  larger = times * found.batch_size // 4 * 4
  rows = {}
  for variant in VARIANTS:
    rows[variant] = row = placed(model, cluster, larger, variant, allowed)
    if row["step_time_us"] is not None and base["step_time_us"] is not None:
      per_example = row["step_time_us"] / larger
      row["ratio"] = per_example * found.batch_size / base["step_time_us"]
    print(name, preset, larger, variant, row.get("ratio"), flush=True)
  return {
    "model": name,
    "about": trained.about,
    "cluster": preset,
    "largest_batch": dataclasses.asdict(found),
    "kept": base,
    "batch_size": larger,
    "variants": rows,
  }


def print_table(rows: list[dict[str, Any]]) -> None:
  """Prints a row per model and cluster."""
  grid = table.Table(title="Time per example over the largest batch that fits")
  for column in ("model", "cluster", "fits", "batch", *VARIANTS):
    grid.add_column(column, justify="right")
  for row in rows:
    ratios = (
      "does not fit"
      if v["step_time_us"] is None
      else f"{v.get('ratio', 0):.2f}"
      for v in row["variants"].values()
    )
    largest = row["largest_batch"]["batch_size"]
    grid.add_row(
      row["model"],
      row["cluster"],
      str(largest),
      str(row["batch_size"]),
      *ratios,
    )
  console.Console(width=110).print(grid)


def main(_: flags.FlagValues) -> None:
  cli.load_tensorflow()
  from benchmarks.models import reference

  command.check_names("models", _MODELS.value, reference.MODELS)
  settings = {
    "times": _TIMES.value,
    "budget_s": _BUDGET_S.value,
    "strategy": _STRATEGY.value,
  }
  saved = saved_rows.SavedRows(_OUT.value, settings)
  rows = [
    saved.row(f"{name} {preset}", lambda n=name, p=preset: measured_row(n, p))
    for name in _MODELS.value
    for preset in _CLUSTERS.value
  ]
  print_table(rows)


if __name__ == "__main__":
  OPTIONS.run(main)
