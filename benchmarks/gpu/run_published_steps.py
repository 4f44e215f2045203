"""Predicted beside published times of whole steps.

Reads the published rows of `--data` (not part of the project), traces each
model, costs it with the cost model `kernels`, and simulates the step on the
GPUs of the row. Of rows on several GPUs the time over that on one GPU is
compared, too.

  python benchmarks/gpu/run_published_steps.py --data=gpu_steps.csv
"""

import itertools
import json
import math
import multiprocessing
import pathlib
import sys
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, TypeAlias

import numpy as np
import published_steps
from absl import app, flags
from published_steps import Row
from rich import console, table

RESULTS = pathlib.Path(__file__).parents[1] / "results"
_DATA = flags.DEFINE_string("data", None, "gpu_steps.csv of published steps.")
_MODELS = flags.DEFINE_list("models", None, "Models; by default all.")
_SUBSET = flags.DEFINE_enum(
  "subset", "all", ["all", "development", "holdout"], "Rows to predict."
)
_GPUS = flags.DEFINE_enum(
  "gpus", "all", ["all", "one", "several"], "Rows of how many GPUs."
)
_FUSED = flags.DEFINE_boolean("fused", True, "Fused normalization kernels.")
_COSTS = flags.DEFINE_string("costs", "kernels", "Cost model.")
_OUT = flags.DEFINE_string(
  "out", str(RESULTS / "published_steps.json"), "JSON file to write."
)

Result: TypeAlias = dict[str, Any]


def chosen_rows() -> list[Row]:
  """Rows of the chosen models and subset."""
  rows = published_steps.read(_DATA.value)
  if _MODELS.value:
    rows = [row for row in rows if row.model in _MODELS.value]
  if _SUBSET.value != "all":
    wanted = _SUBSET.value == "development"
    rows = [row for row in rows if row.is_development == wanted]
  if _GPUS.value != "all":
    rows = [row for row in rows if (row.gpus == 1) == (_GPUS.value == "one")]
  return rows


def predictions(rows: list[Row]) -> list[Result]:
  """One result per row; each step is traced by a process of its own."""
  results = []
  by_step = sorted(rows, key=lambda row: row.step_key)
  for key, each in itertools.groupby(by_step, lambda row: row.step_key):
    print(*key, file=sys.stderr, flush=True)
    group = [*each]
    spawn = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, mp_context=spawn) as process:
      future = process.submit(
        published_steps.predicted, key, group, _FUSED.value, _COSTS.value
      )
      try:
        found = future.result()
      except futures.process.BrokenProcessPool:
        print("  killed: not enough memory", file=sys.stderr, flush=True)
        continue
    results += [_merged(*pair) for pair in zip(group, found, strict=True)]
  return _scaled(rows, results)


def _merged(row: Row, found: Result) -> Result:
  """A published row with its prediction."""
  names = ("model", "mode", "gpu", "gpus", "batch", "precision", "xla", "note")
  return {
    **{name: getattr(row, name) for name in names},
    "development": row.is_development,
    "published_ms": row.step_ms,
    **found,
    "ratio": found["predicted_ms"] / row.step_ms,
    "steps_per_update": row.steps_per_update,
    "on_one": row.on_one,
  }


def _scaled(rows: list[Row], results: list[Result]) -> list[Result]:
  """Adds the scaling to rows of several GPUs: time over that on one GPU.

  An update after several micro-steps counts with its share.
  """
  published = {row.on_one: row.step_ms for row in rows if row.gpus == 1}
  alone = {r["on_one"]: r["predicted_ms"] for r in results if r["gpus"] == 1}
  for result in results:
    key = result.pop("on_one")
    steps = result.pop("steps_per_update")
    if result["gpus"] == 1 or key not in alone:
      continue
    if "strong scaling" not in result["note"]:
      sent_ms = result["predicted_ms"] - alone[key]
      result["predicted_ms"] = alone[key] + sent_ms / steps
      result["ratio"] = result["predicted_ms"] / result["published_ms"]
    result["published_scaling"] = result["published_ms"] / published[key]
    result["predicted_scaling"] = result["predicted_ms"] / alone[key]
  return results


def _errors(ratios: Sequence[float]) -> Result:
  logs = [abs(math.log(ratio)) for ratio in ratios]
  return {
    "rows": len(logs),
    "median_log_error": float(np.median(logs)),
    "worst_factor": math.exp(max(logs)),
  }


def summary(results: list[Result]) -> Result:
  """Errors of each part of the rows, development and holdout."""
  parts: dict[str, Callable[[Result], bool]] = {
    "one GPU, without XLA": lambda r: r["gpus"] == 1 and not r["xla"],
    "one GPU, with XLA": lambda r: r["gpus"] == 1 and r["xla"],
    "one GPU, TF32 and mixed": lambda r: (
      r["gpus"] == 1 and r["precision"] != "fp32"
    ),
    "several GPUs": lambda r: r["gpus"] > 1,
    "several GPUs, time over one": lambda r: "predicted_scaling" in r,
  }
  found = {}
  for name, is_in in parts.items():
    for is_development in (True, False):
      ratios = [
        r["predicted_scaling"] / r["published_scaling"]
        if name.endswith("over one")
        else r["ratio"]
        for r in results
        if is_in(r) and r["development"] == is_development
      ]
      if ratios:
        subset = "development" if is_development else "holdout"
        found[f"{name}, {subset}"] = _errors(ratios)
  return found


def shown(results: list[Result]) -> table.Table:
  """A table of all rows."""
  columns = ("model", "GPU", "batch", "precision", "XLA", "subset")
  result = table.Table(*columns, "published", "predicted", "ratio", "scaling")
  for r in results:
    subset = "development" if r["development"] else "holdout"
    model = r["model"] if r["mode"] == "train" else f"{r['model']}, inference"
    gpu = r["gpu"] if r["gpus"] == 1 else f"{r['gpus']} x {r['gpu']}"
    scaling = ""
    if "predicted_scaling" in r:
      scaling = f"{r['predicted_scaling']:.3f} / {r['published_scaling']:.3f}"
    result.add_row(
      model,
      gpu,
      str(r["batch"]),
      r["precision"],
      "yes" if r["xla"] else "no",
      subset,
      *(f"{r[k]:.1f} ms" for k in ("published_ms", "predicted_ms")),
      f"{r['ratio']:.2f}",
      scaling,
    )
  return result


def main(_: list[str]) -> None:
  results = predictions(chosen_rows())
  found = {"costs": _COSTS.value, "fused": _FUSED.value}
  found |= {"summary": summary(results), "rows": results}
  text = json.dumps(found, indent=1) + "\n"
  pathlib.Path(_OUT.value).write_text(text, encoding="utf-8")
  console.Console(width=140).print(shown(results))
  print(json.dumps(found["summary"], indent=1))


if __name__ == "__main__":
  flags.mark_flag_as_required("data")
  app.run(main)
