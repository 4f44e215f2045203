"""Predicted beside published times of whole steps.

Reads the published rows of `--data` (not part of the project), traces each
model, costs it with the cost model `kernels`, and simulates the step on the
GPUs of the row. Of rows on several GPUs the time over that on one GPU is
compared, too.

  python -m benchmarks.gpu.run_published_steps --data=gpu_steps.csv
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
from absl import app, flags
from rich import console, table

from benchmarks.gpu import published_steps
from benchmarks.gpu.published_steps import Row

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
  """One result per row; each step is traced by a process of its own.

  Rows that the file of `--out` holds are not predicted again.
  """
  results = known_results()
  known = {tuple(r["key"]) for r in results}
  by_step = sorted(
    (row for row in rows if row.key not in known), key=lambda row: row.step_key
  )
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
    save(results)
  wanted = {row.key for row in rows}
  return [r for r in results if tuple(r["key"]) in wanted]


def known_results() -> list[Result]:
  """Results of an earlier run with the same costs."""
  path = pathlib.Path(_OUT.value)
  if not path.exists():
    return []
  found = json.loads(path.read_text(encoding="utf-8"))
  same = (found["costs"], found["fused"]) == (_COSTS.value, _FUSED.value)
  return found["rows"] if same else []


def save(results: list[Result], **others: Any) -> None:
  """Writes the file of `--out`."""
  found = {"costs": _COSTS.value, "fused": _FUSED.value, **others}
  text = json.dumps({**found, "rows": results}, indent=1) + "\n"
  pathlib.Path(_OUT.value).write_text(text, encoding="utf-8")


def _merged(row: Row, found: Result) -> Result:
  """A published row with its prediction."""
  names = ("model", "mode", "gpu", "gpus", "batch", "precision", "xla", "note")
  return {
    "key": row.key,
    **{name: getattr(row, name) for name in names},
    "development": row.is_development,
    "published_ms": row.step_ms,
    **found,
    "ratio": found["predicted_ms"] / row.step_ms,
  }


def scaled(rows: list[Row], results: list[Result]) -> list[Result]:
  """Adds the scaling to rows of several GPUs: time over that on one GPU.

  An update after several micro-steps counts with its share.
  """
  of_row = {row.key: row for row in rows}
  alone = {of_row[tuple(r["key"])].on_one: r for r in results if r["gpus"] == 1}
  found = []
  for result in results:
    row = of_row[tuple(result["key"])]
    one = alone.get(row.on_one)
    if row.gpus == 1 or one is None:
      found.append(result)
      continue
    one_ms, step_ms = one["predicted_ms"], result["predicted_ms"]
    if row.is_weak_scaling:
      step_ms = one_ms + (step_ms - one_ms) / row.steps_per_update
    scaling = {
      "predicted_ms": step_ms,
      "ratio": step_ms / row.step_ms,
      "published_scaling": row.step_ms / one["published_ms"],
      "predicted_scaling": step_ms / one_ms,
    }
    found.append({**result, **scaling})
  return found


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


COLUMNS = (
  *("model", "GPU", "batch", "precision", "XLA", "rows"),
  *("published", "predicted", "ratio", "time over one GPU"),
)


def cells(r: Result) -> tuple[str, ...]:
  """One row of the table; scaling is predicted / published."""
  scaling = ""
  if "predicted_scaling" in r:
    scaling = f"{r['predicted_scaling']:.3f} / {r['published_scaling']:.3f}"
  return (
    r["model"] if r["mode"] == "train" else f"{r['model']}, inference",
    r["gpu"] if r["gpus"] == 1 else f"{r['gpus']} x {r['gpu']}",
    str(r["batch"]),
    r["precision"],
    "yes" if r["xla"] else "no",
    "development" if r["development"] else "holdout",
    *(f"{r[key]:.1f} ms" for key in ("published_ms", "predicted_ms")),
    f"{r['ratio']:.2f}",
    scaling,
  )


def write_table(rows: list[tuple[str, ...]]) -> None:
  """Writes the table in Markdown beside the file of `--out`."""
  lines = [COLUMNS, ("---",) * len(COLUMNS), *rows]
  text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
  path = pathlib.Path(_OUT.value).with_suffix(".md")
  path.write_text(f"# Published steps\n\n{text}", encoding="utf-8")


def main(_: list[str]) -> None:
  rows = chosen_rows()
  results = predictions(rows)
  of_rows = scaled(rows, results)
  save(results, summary=summary(of_rows))
  of_rows.sort(key=lambda r: (r["gpus"] > 1, r["model"], r["gpu"], r["batch"]))
  of_table = [cells(r) for r in of_rows]
  write_table(of_table)
  shown = table.Table(*COLUMNS)
  for row in of_table:
    shown.add_row(*row)
  console.Console(width=140).print(shown)
  print(json.dumps(summary(of_rows), indent=1))


if __name__ == "__main__":
  flags.mark_flag_as_required("data")
  app.run(main)
