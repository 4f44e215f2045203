"""A smoke test: the users' models, tried as a new user would.

Each model of `users_models.py` is, in a process of its own with logical CPU
devices: fitted as it is, planned for `--cluster` without and with microbatches,
and an equal model placed on these devices and fitted, also in units that XLA
compiles. Losses are compared, those of units with the step that Keras compiles.
A part that fails has its error in the row. Six models need keras-hub.

  python -m benchmarks.run_users_models
  python -m benchmarks.run_users_models --models=gan,vae --parts=xla,xla_split
"""

import importlib.util
import itertools
import json
import math
import multiprocessing
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.formats.json_file import write_json
from tfplace.graph.cluster import Cluster, Device, Link

if TYPE_CHECKING:
  from benchmarks.users_models import Case

_PARTS = {
  "plan": "`plan_model`",
  "plan_auto": '`microbatches="auto"`',
  "place": "`place_model` and `fit`",
  "xla": '`compile="xla"`',
  "xla_split": "the same in two microbatches",
}

OPTIONS = Options("run_users_models", __doc__)
OPTIONS.add("models", [], "Models; all where left out.")
OPTIONS.add("parts", [], f"Of {', '.join(_PARTS)}; all where left out.")
OPTIONS.add("cluster", "v100x4", "Cluster to plan for.")
OPTIONS.add("limit_s", 400.0, "Seconds of a model's process.", least=1)
OPTIONS.add_search(10.0, "users_models.json")


def main(values: flags.FlagValues) -> None:
  """Tries missing models.

  Raises:
    UsageError: a model is unknown, or keras-hub is not installed.
  """
  seeds = lib.numbers("seeds", values.seeds)
  cli.load_tensorflow()
  from benchmarks import users_models

  names = values.models or [*users_models.MODELS]
  lib.check_names("models", names, users_models.MODELS)
  lib.check_names("parts", values.parts, _PARTS)
  hub = [name for name in names if name in users_models.HUB]
  if hub and importlib.util.find_spec("keras_hub") is None:
    raise cli.UsageError(
      f"{', '.join(hub)}: keras-hub is not installed; run pip install"
      " keras-hub, or name other models in --models"
    )
  settings = {"cluster": values.cluster, "budget_s": values.budget_s}
  saved = lib.Rows(values.out, settings, seeds=seeds[:1])
  for name in names:
    saved.row(name, lambda name=name: in_a_process(values, name, seeds[0]))
  print(tables(saved.found)["users_models"])


def in_a_process(
  values: flags.FlagValues, name: str, seed: int
) -> dict[str, Any]:
  """Tries one model; returns its row."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "row.json"
    process = multiprocessing.get_context("spawn").Process(
      target=attempt,
      args=(name, values.cluster, values.budget_s, seed, str(path)),
      kwargs={"parts": values.parts},
    )
    process.start()
    process.join(values.limit_s)
    process.kill()
    process.join()
    row = json.loads(path.read_text()) if path.exists() else {}
  if process.exitcode != 0:
    error = f"ended with {process.exitcode} within {values.limit_s:g} s"
    row["process"] = {"works": False, "error": error}
  return row


def attempt(
  name: str,
  cluster: str,
  budget_s: float,
  seed: int,
  path: str,
  parts: Sequence[str] = (),
) -> None:
  """Makes attempts on a model, in the order in which a user would."""
  import tensorflow as tf

  import tfplace
  from benchmarks import users_models

  cpu = tf.config.list_physical_devices("CPU")[0]
  logical = [tf.config.LogicalDeviceConfiguration()] * 2
  tf.config.set_logical_device_configuration(cpu, logical)
  build = users_models.MODELS[name]
  cases: list[Case] = []
  losses: list[dict[str, float]] = []
  compiled: list[dict[str, float]] = []

  def fit() -> dict[str, Any]:
    cases.append(_built(build))
    losses.extend(fitted(cases[0]))
    return {"steps": len(losses)}

  def fit_xla() -> dict[str, Any]:
    compiled.extend(fitted(_built(build, jit_compile=True)))
    difference = largest_difference(losses, compiled)
    return {"steps": len(compiled), "difference": difference}

  def plan(**options: Any) -> dict[str, Any]:
    options = {"budget_s": budget_s, "seed": seed, **options}
    found = tfplace.plan_model(cases[0].model, cluster, **options)
    return {"message": found.message, "strategy": found.strategy}

  def place() -> dict[str, Any]:
    case = _built(build)
    placed = tfplace.place_model(case.model, budget_s=budget_s, seed=seed)
    difference = largest_difference(losses, fitted(case))
    return {"difference": difference, "message": placed.placement.message}

  def in_units(count: int) -> dict[str, Any]:
    # Masks are XLA's only where Keras compiles the step.
    case = _built(build, jit_compile=bool(compiled))
    options = {"strategy": "metis", "costs": "estimated", "compile": "xla"}
    placed = tfplace.place_model(
      case.model, _two_cpus(), microbatches=count, **options
    )
    found = fitted(case)
    graph = placed.placement.placement.problem.graph
    return {
      "difference": largest_difference(compiled or losses, found),
      "devices": len(placed.placement.devices),
      "notes": [note for note in placed.placement.notes if "XLA" in note],
      "ops": len(graph.traced_names),
      "units": len(graph.members),
      "outside": graph.num_ops - len(graph.members),
    }

  row: dict[str, Any] = {}
  attempts: dict[str, Callable[[], dict[str, Any]]] = {
    "fit": fit,
    "plan": plan,
    "plan_auto": lambda: plan(microbatches="auto"),
    "place": place,
    "fit_xla": fit_xla,
    "xla": lambda: in_units(1),
    "xla_split": lambda: in_units(2),
  }
  for part, call in attempts.items():
    if parts and part not in (*parts, "fit", "fit_xla"):
      continue
    row[part] = attempted(call)
    write_json(pathlib.Path(path), row)
    if part == "fit" and not row[part]["works"]:
      return


def _two_cpus() -> Cluster:
  """Returns this process's devices; with fast links, plans use both."""
  names = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2)]
  return Cluster(
    "two CPUs",
    tuple(Device(name, "CPU", math.inf) for name in names),
    tuple(Link(*pair, 1e6) for pair in itertools.permutations(names)),
  )


def attempted(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
  """Returns the call's result or its error, with its seconds."""
  began = time.perf_counter()
  try:
    found = {"works": True, **call()}
  except Exception as error:  # A row says of any error what it was.
    said = " ".join(str(error).split())
    found = {"works": False, "error": f"{type(error).__name__}: {said}"}
  return {**found, "seconds": round(time.perf_counter() - began, 2)}


def _built(build: Callable[[], "Case"], jit_compile: bool = False) -> "Case":
  """Builds a model; weights and random numbers are equal in each call."""
  import keras

  keras.utils.clear_session()
  keras.utils.set_random_seed(1)
  case = build()
  case.model.jit_compile = jit_compile
  return case


def fitted(case: "Case") -> list[dict[str, float]]:
  """Fits a model; returns losses by step."""
  import keras
  import tensorflow as tf

  found: list[dict[str, float]] = []
  keep = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda _, logs: found.append(
      {k: float(v) for k, v in logs.items() if "loss" in k}
    )
  )
  dataset = tf.data.Dataset.from_tensor_slices(case.data)
  case.model.fit(dataset.batch(case.batch_size), verbose=0, callbacks=[keep])
  return found


def largest_difference(
  first: list[dict[str, float]], second: list[dict[str, float]]
) -> float | None:
  """Returns the largest relative difference; None without losses to compare."""
  if not first or [*map(sorted, first)] != [*map(sorted, second)]:
    return None
  pairs = [
    (a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a
  ]
  differences = [
    abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0 for a, b in pairs
  ]
  is_known = differences and all(map(math.isfinite, differences))
  return max(differences) if is_known else None


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns how many models each part works for, and its median seconds."""
  rows = found["rows"].values()
  said = []
  for part, shown in _PARTS.items():
    tried = [row[part] for row in rows if part in row]
    if not tried:
      continue
    seconds = [each["seconds"] for each in tried if each["works"]]
    middle = f", {statistics.median(seconds):.0f} s" if seconds else ""
    said.append(f"{shown}: {len(seconds)} of {len(rows)}{middle}")
  differences = [
    row[part].get("difference")
    for row in rows
    for part in ("place", "xla", "xla_split")
    if part in row
  ]
  largest = max((d for d in differences if d is not None), default=math.nan)
  text = f"{'; '.join(said)}. Largest difference of losses: {largest:.1e}."
  return {"users_models": f"{text}\n\n{lib.caption(found)}"}


if __name__ == "__main__":
  OPTIONS.run(main)
