"""Models that can be split, and the seconds of the proof and of the check.

Plans a step of two microbatches for models of `keras.applications`, of
keras-hub (where it is installed) and of `models/reference.py`. Each is examined
op by op, and compared with the whole step by numbers. Prints a table and writes
JSON; rows that the file holds are not made again.

  python -m benchmarks.microbatches.run_exactness
"""

import contextlib
import gc
import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from unittest import mock

import keras
import numpy as np
from absl import flags
from rich import console, table

import tfplace
from benchmarks.lib import saved_rows
from benchmarks.lib.command import Options
from benchmarks.models import others, reference
from tfplace.errors import ExtractionError
from tfplace.extraction.microbatches import microbatch

OPTIONS = Options("run_exactness", __doc__)
_OUT = OPTIONS.out("exactness.json")
_ONLY = OPTIONS.add("only", [], "Parts of the names to plan.")
_UNCHECKED = "Not checked by numbers: "


@contextlib.contextmanager
def _timed_examination() -> Iterator[list[float]]:
  """Collects the seconds of the static analysis, one entry for each step."""
  seconds: list[float] = []
  examine = microbatch.examine

  def timed(*args, **kwargs):
    began = time.monotonic()
    try:
      return examine(*args, **kwargs)
    finally:
      seconds.append(time.monotonic() - began)

  with mock.patch.object(microbatch, "examine", timed):
    yield seconds


def planned(build: Callable[[], others.Foreign]) -> dict:
  """Plans one model and returns its row of the table."""
  keras.utils.clear_session()
  keras.utils.set_random_seed(1)
  foreign = build()
  with _timed_examination() as examined:
    try:
      plan = tfplace.plan_model(
        foreign.model,
        "v100x2",
        strategy="m_topo",
        sample=foreign.sample,
        microbatches=2,
        allow_batch_statistics=foreign.has_batch_statistics,
        verbose=0,
      )
    except ExtractionError as error:
      return {"outcome": "refused", "why": str(error)}
  _, dashes, why = " ".join(plan.notes).partition(_UNCHECKED)
  return {
    "outcome": "examined" if dashes else "checked",
    "why": why,
    "ops": plan.placement.problem.graph.num_ops,
    "tracing_s": round(plan.seconds["tracing"], 2),
    "examining_s": round(sum(examined), 2),
    "checking_s": round(plan.seconds.get("checking", 0.0), 2),
  }


def trained(name: str) -> others.Foreign:
  """A model of `models/reference.py`, with eight examples."""
  model = reference.MODELS[name].build()
  return others.with_data(model)


def _builders() -> dict[str, Callable[[], others.Foreign]]:
  found = others.builders()
  if importlib.util.find_spec("keras_hub") is None:
    found = {k: v for k, v in found.items() if not k.startswith("keras_hub/")}
  for name in reference.MODELS:
    found[f"trained/{name}"] = lambda name=name: trained(name)
  return found


def show(rows: dict[str, dict]) -> None:
  """Prints the rows, and what they come to."""
  shown = table.Table(
    "model", "outcome", "ops", "tracing", "examining", "check"
  )
  for name, row in rows.items():
    cells = [f"{row.get(k, '')}" for k in ("ops", "tracing_s", "examining_s")]
    shown.add_row(name, row["outcome"], *cells, f"{row.get('checking_s', '')}")
  console.Console().print(shown)
  outcomes = [row["outcome"] for row in rows.values()]
  for outcome in ("checked", "examined", "refused"):
    print(f"{outcome}: {outcomes.count(outcome)} of {len(outcomes)}")
  passed = [row for row in rows.values() if row["outcome"] != "refused"]
  for part in ("examining_s", "checking_s"):
    shares = [row[part] / row["tracing_s"] for row in passed if row[part]]
    print(f"{part} / tracing_s: median {np.median(shares):.3f}")


def main(_: flags.FlagValues) -> None:
  """Plans every model."""
  logging.getLogger("tfplace").setLevel(logging.ERROR)
  saved = saved_rows.SavedRows(
    _OUT.value, {"keras": keras.__version__}, "--out"
  )
  rows = {}
  for name, build in _builders().items():
    if _ONLY.value and not any(part in name for part in _ONLY.value):
      continue
    rows[name] = saved.row(name, lambda build=build: planned(build))
    gc.collect()
  show(rows)


if __name__ == "__main__":
  OPTIONS.run(main)
