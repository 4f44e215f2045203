"""Predicted beside published times of whole steps on one GPU.

Reads the published rows of `--data` (not part of the project), traces each
model, costs it with the cost model `kernels`, and simulates the step on the GPU
of the row. `DEVELOPMENT` names the rows that choices may look at; all others
are the holdout.

  python benchmarks/gpu/run_published_steps.py --data=gpu_steps.csv
"""

import csv
import dataclasses
import itertools
import json
import math
import multiprocessing
import pathlib
import sys
from concurrent import futures
from typing import Any, TypeAlias

import keras
import kernel_data
import kernel_models
import numpy as np
from absl import app, flags
from rich import console, table

from tfplace import cost
from tfplace.core import Problem
from tfplace.core.cluster import Cluster
from tfplace.core.presets import cluster_preset
from tfplace.cost.kernels.model import KernelCosts
from tfplace.extraction import trace_keras
from tfplace.extraction.traced import TracedStep
from tfplace.simulate import Simulator

Key: TypeAlias = tuple[str, int, str, str]

RESULTS = pathlib.Path(__file__).parents[1] / "results"
_DATA = flags.DEFINE_string("data", None, "gpu_steps.csv of published steps.")
_MODELS = flags.DEFINE_list("models", None, "Models; by default all.")
_SUBSET = flags.DEFINE_enum(
  "subset", "all", ["all", "development", "holdout"], "Rows to predict."
)
_FUSED = flags.DEFINE_boolean("fused", True, "Fused normalization kernels.")
_COSTS = flags.DEFINE_string("costs", "kernels", "Cost model.")
_OUT = flags.DEFINE_string(
  "out", str(RESULTS / "kernel_steps.json"), "JSON file to write."
)

# Chosen before any prediction: models whose rows choices may look at.
DEVELOPMENT = (
  "inception_v3",
  "efficientnet_b0",
  "bert_large_pretraining_128",
)
DEVELOPMENT_GPU = {"transformer_xl_base": "v100"}
_PRESETS = {"a100-sxm-40gb": "a100", "a100-pcie-80gb": "a100-pcie"}


def is_development(row: dict[str, str]) -> bool:
  """Returns whether a row is a development row."""
  model = row["model"]
  return model in DEVELOPMENT or DEVELOPMENT_GPU.get(model) == row["gpu"]


def cluster_of(gpu: str) -> Cluster:
  """One GPU and its host, memory unlimited: the row says that it fits."""
  cluster = cluster_preset(f"{_PRESETS.get(gpu, gpu)}x1")
  devices = [
    dataclasses.replace(device, memory_bytes=math.inf)
    for device in cluster.devices
  ]
  if gpu == "a100-pcie-80gb":
    hardware = {**devices[0].extra["hardware"]}
    found = kernel_data.HARDWARE[gpu]
    hardware["bandwidth"] = int(found.bandwidth_bytes_per_us * 1e3)
    hardware["power_watts"] = found.power_watts
    devices[0] = dataclasses.replace(devices[0], extra={"hardware": hardware})
  return dataclasses.replace(cluster, devices=tuple(devices))


def traced(key: Key, fused: bool) -> TracedStep:
  """The step of a model, with fused normalization or with Keras' own."""
  model, batch, policy, mode = key
  keras.mixed_precision.set_global_policy(policy)
  built, sample = kernel_models.build(model, batch, fused)
  return trace_keras(built, batch, training=mode == "train", sample=sample)


def predicted(
  key: Key, rows: list[dict[str, str]], fused: bool, costs: str
) -> list[dict[str, Any]]:
  """Predictions of the rows of one step, which is traced once."""
  step = traced(key, fused)
  return [predicted_on(step, row, costs) for row in rows]


def predicted_on(
  step: TracedStep, row: dict[str, str], costs: str
) -> dict[str, Any]:
  """Step time on one GPU of the row, with what it consists of."""
  cluster = cluster_of(row["gpu"])
  model: Any = costs
  if costs == "kernels":
    model = KernelCosts(tensor_float_32=row["precision"] != "fp32")
  graph = cost.op_graph(step, cluster, cost_model=model)
  gpu = graph.time_us["GPU"]
  placement = np.where(np.isnan(gpu), 1, 0)[None, :]
  result = Simulator(Problem(graph, cluster)).evaluate(placement)[0]
  busy = np.nan_to_num(gpu)
  by_type: dict[str, float] = {}
  for kind, time_us in zip(graph.types, busy, strict=True):
    by_type[kind] = by_type.get(kind, 0.0) + float(time_us) / 1e3
  top = sorted(by_type.items(), key=lambda pair: -pair[1])[:8]
  return {
    "predicted_ms": result.step_time_us / 1e3,
    "kernels": int((busy > 0).sum()),
    "kernels_ms": float(busy.sum()) / 1e3,
    "top_ms": {kind: round(ms, 2) for kind, ms in top},
  }


def rows_of_one_gpu(path: str) -> list[dict[str, str]]:
  """Rows on one GPU of the chosen models and subset."""
  with open(path, encoding="utf-8") as file:
    rows = [row for row in csv.DictReader(file) if row["gpus"] == "1"]
  chosen = _MODELS.value
  rows = [row for row in rows if not chosen or row["model"] in chosen]
  if _SUBSET.value == "all":
    return rows
  wanted = _SUBSET.value == "development"
  return [row for row in rows if is_development(row) == wanted]


def policy_of(row: dict[str, str]) -> str:
  return "mixed_float16" if row["precision"] == "mixed" else "float32"


def step_key(row: dict[str, str]) -> Key:
  """Model, batch, Keras policy and mode of a row's step."""
  return row["model"], int(row["batch_per_gpu"]), policy_of(row), row["mode"]


def predictions(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
  """One result per row; each step is traced by a process of its own."""
  results = []
  for key, each in itertools.groupby(sorted(rows, key=step_key), step_key):
    print(*key, file=sys.stderr, flush=True)
    group = [*each]
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
      future = process.submit(predicted, key, group, _FUSED.value, _COSTS.value)
      try:
        found = future.result()
      except futures.process.BrokenProcessPool:
        print("  killed: not enough memory", file=sys.stderr, flush=True)
        continue
    results += [merged(*pair) for pair in zip(group, found, strict=True)]
  return results


def merged(row: dict[str, str], found: dict[str, Any]) -> dict[str, Any]:
  """A published row with its prediction."""
  names = ("model", "mode", "gpu", "batch_per_gpu", "precision", "xla")
  published = float(row["step_ms"])
  return {
    **{name: row[name] for name in names},
    "development": is_development(row),
    "published_ms": published,
    **found,
    "ratio": found["predicted_ms"] / published,
  }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
  """Errors of each part of the rows."""
  parts = {
    "without XLA": lambda r: r["xla"] == "0",
    "with XLA": lambda r: r["xla"] == "1",
    "TF32 and mixed": lambda r: r["precision"] != "fp32",
  }
  result = {}
  for name, chosen in parts.items():
    for subset in ("development", "holdout"):
      errors = [
        abs(math.log(r["ratio"]))
        for r in results
        if chosen(r) and r["development"] == (subset == "development")
      ]
      if errors:
        result[f"{name}, {subset}"] = {
          "rows": len(errors),
          "median_log_error": float(np.median(errors)),
          "worst_factor": math.exp(max(errors)),
        }
  return result


def main(_: list[str]) -> None:
  results = predictions(rows_of_one_gpu(_DATA.value))
  found = {"costs": _COSTS.value, "fused": _FUSED.value}
  found |= {"summary": summary(results), "rows": results}
  text = json.dumps(found, indent=1) + "\n"
  pathlib.Path(_OUT.value).write_text(text, encoding="utf-8")
  columns = ("model", "GPU", "batch", "precision", "XLA", "subset")
  shown = table.Table(*columns, "published", "predicted", "ratio")
  for r in results:
    subset = "development" if r["development"] else "holdout"
    what = (r["model"], r["gpu"], r["batch_per_gpu"], r["precision"], r["xla"])
    times = (f"{r[k]:.1f} ms" for k in ("published_ms", "predicted_ms"))
    shown.add_row(*what, subset, *times, f"{r['ratio']:.2f}")
  console.Console(width=120).print(shown)
  print(json.dumps(found["summary"], indent=1))


if __name__ == "__main__":
  flags.mark_flag_as_required("data")
  app.run(main)
