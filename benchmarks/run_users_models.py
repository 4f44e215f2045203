"""A smoke test: the users' models, tried as a new user would.

Each model of `users_models.py` is, in a process of its own with two logical CPU
devices: fitted for three epochs as it is, planned for `--cluster` without and
with microbatches, and equal models placed on both devices and fitted, whole and
in two microbatches, without and with units that XLA compiles. Losses are
compared; those of whole steps in units with the step that Keras compiles. As
microbatches draw masks of their own, dropout is off where steps are split.
Programs that XLA ran in a step are counted in TensorFlow's profile of one.
A part that fails has its error in the row. Seven models need keras-hub.

  python -m benchmarks.run_users_models
  python -m benchmarks.run_users_models --models=gan,vae --parts=xla,xla_split
"""

import collections
import importlib.util
import itertools
import json
import math
import multiprocessing
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from benchmarks import lib
from benchmarks.lib import Options
from tfplace.bin import cli
from tfplace.formats.json_file import write_json
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import UNIT, XLA
from tfplace.graph.placement import Placement

if TYPE_CHECKING:
  from benchmarks.users_models import Case

_PARTS = {
  "plan": "`plan_model`",
  "plan_auto": '`microbatches="auto"`',
  "place": "`place_model` and `fit`",
  "split": "in two microbatches",
  "xla": '`compile="xla"`',
  "xla_split": "both",
}
NONE = "none"
_EPOCHS = 3
_LEAST = 1e-30  # Losses of 0 are equal.
_RAN = "Executable::ExecuteAsyncOnStream"  # of CPUs and GPUs

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
  settings = {
    "cluster": values.cluster,
    "budget_s": values.budget_s,
    "epochs": _EPOCHS,
  }
  saved = lib.Rows(values.out, settings, seeds=seeds[:1])
  for name in names:
    saved.row(name, lambda name=name: in_a_process(values, name, seeds[0]))
  print(tables(saved.found)["users_models"])


def in_a_process(
  values: flags.FlagValues, name: str, seed: int
) -> dict[str, Any]:
  """Tries one model; returns its row."""
  began = time.perf_counter()
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
  seconds = time.perf_counter() - began
  print(f"{name}: {seconds:.0f} s", flush=True)
  return {"seconds": round(seconds), **row}


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
  unmasked: list[dict[str, float]] = []

  def fit() -> dict[str, Any]:
    cases.append(_built(build))
    losses.extend(fitted(cases[0]))
    return {"steps": len(losses)}

  def fit_xla() -> dict[str, Any]:
    compiled.extend(fitted(_built(build, jit_compile=True)))
    by_step = differences(losses, compiled)
    return {"steps": len(compiled), "difference": max(by_step, default=None)}

  def fit_split() -> dict[str, Any]:
    case = _built(build)
    count = _drop_nothing(case.model)
    unmasked.extend(fitted(case) if count else losses)
    return {"steps": len(unmasked), "dropout": count}

  def plan(**options: Any) -> dict[str, Any]:
    options = {"budget_s": budget_s, "seed": seed, **options}
    found = tfplace.plan_model(cases[0].model, cluster, **options)
    return {"message": found.message, "strategy": found.strategy}

  def place(count: int, compiles: str) -> dict[str, Any]:
    # Masks are XLA's only where Keras compiles the step.
    in_units = compiles == XLA
    case = _built(build, jit_compile=in_units and bool(compiled))
    if count > 1:
      _drop_nothing(case.model)
    expected = (in_units and compiled) or losses if count == 1 else unmasked
    options = {"strategy": "metis", "costs": "estimated", "compile": compiles}
    asked = {"sample": case.data, "microbatches": count, **options}
    planned = tfplace.plan_model(case.model, _two_cpus(), **asked)
    planned = planned.with_placement(
      _on_both(planned.outcome.results[0].placement),
      strategy="metis",
      one_device=False,
    )
    tfplace.place_model(case.model, placement=planned)
    by_step = differences(expected, fitted(case))
    row = {
      "difference": max(by_step, default=None),
      "by_step": [float(f"{one:.1e}") for one in by_step],
      "devices": len(planned.devices),
    }
    return {**row, **units(case)} if in_units else row

  row: dict[str, Any] = {}
  attempts: dict[str, Callable[[], dict[str, Any]]] = {
    "fit": fit,
    "plan": plan,
    "plan_auto": lambda: plan(microbatches="auto"),
    "place": lambda: place(1, NONE),
    "fit_split": fit_split,
    "split": lambda: place(2, NONE),
    "fit_xla": fit_xla,
    "xla": lambda: place(1, XLA),
    "xla_split": lambda: place(2, XLA),
  }
  needs = {"fit_split": ("split", "xla_split"), "fit_xla": ("xla", "xla_split")}
  for part, call in attempts.items():
    asked = {part, *needs.get(part, ())}
    if parts and part != "fit" and asked.isdisjoint(parts):
      continue
    row[part] = attempted(call)
    write_json(pathlib.Path(path), row)
    if part == "fit" and not row[part]["works"]:
      return


def units(case: "Case") -> dict[str, Any]:
  """Returns what a placed and fitted model compiles, and what XLA ran.

  Merging leaves fewer calls than units. What is outside units in the plan may
  be inside a call: see `tfplace.variants.units.calls`.
  """
  plan = case.model.placement
  graph = plan.placement.problem.graph
  outside = collections.Counter(
    kind for kind in graph.types if kind != UNIT
  ).most_common()
  count, distinct = programs(lambda: fitted(case, epochs=1))
  return {
    "ops": len(graph.traced_names),
    "units": len(graph.members),
    "clusters": count,
    "distinct": distinct,
    "outside": dict(outside),
    "notes": [note for note in plan.notes if "XLA" in note],
  }


def programs(step: Callable[[], Any]) -> tuple[int, int]:
  """Returns how many programs XLA ran in a step, and how many distinct ones.

  From TensorFlow's profile of the step.
  """
  import tensorflow as tf
  from tensorflow.tsl.profiler.protobuf import xplane_pb2

  with tempfile.TemporaryDirectory() as folder:
    with tf.profiler.experimental.Profile(folder):
      step()
    (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
  count, modules = 0, set()
  for plane in space.planes:
    for event in itertools.chain.from_iterable(
      line.events for line in plane.lines
    ):
      name = plane.event_metadata[event.metadata_id].name
      count += name.endswith(_RAN)
      modules.update(
        stat.str_value or plane.stat_metadata[stat.ref_value].name
        for stat in event.stats
        if plane.stat_metadata[stat.metadata_id].name == "hlo_module"
      )
  return count, len(modules)


def _two_cpus() -> Cluster:
  """Returns this process's devices; with fast links, plans use both."""
  names = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(2)]
  return Cluster(
    "two CPUs",
    tuple(Device(name, "CPU", math.inf) for name in names),
    tuple(Link(*pair, 1e6) for pair in itertools.permutations(names)),
  )


def _on_both(placement: Placement) -> Placement:
  """Returns a placement on two devices, in halves if it is on one.

  One device may be as fast.
  """
  problem = placement.problem
  if len(np.unique(placement.devices)) > 1:
    return placement
  place = np.argsort(problem.graph.topological_order)
  first = np.full(problem.num_groups, len(place))
  np.minimum.at(first, problem.group_of, place)
  devices = (first > np.median(first)).astype(int)
  return Placement(problem, devices[problem.group_of])


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


def _drop_nothing(model: Any) -> int:
  """Turns dropout off; returns the number of layers that had some."""
  count = 0
  for layer in model._flatten_layers():
    for name in ("rate", "dropout", "recurrent_dropout"):
      if isinstance(vars(layer).get(name), float) and vars(layer)[name]:
        setattr(layer, name, 0.0)
        count += 1
  return count


def fitted(case: "Case", epochs: int = _EPOCHS) -> list[dict[str, float]]:
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
  case.model.fit(
    dataset.batch(case.batch_size),
    epochs=epochs,
    verbose=0,
    callbacks=[keep],
  )
  return found


def differences(
  first: list[dict[str, float]], second: list[dict[str, float]]
) -> list[float]:
  """Returns the largest relative difference of each step.

  Without losses to compare, or with one that is not finite, the list is empty.
  """
  if [*map(sorted, first)] != [*map(sorted, second)]:
    return []
  found = [
    max(
      abs(a[name] - b[name]) / max(abs(a[name]), abs(b[name]), _LEAST)
      for name in a
    )
    for a, b in zip(first, second, strict=True)
    if a
  ]
  return found if all(map(math.isfinite, found)) else []


def tables(found: Mapping[str, Any]) -> dict[str, str]:
  """Returns how many models each part works for, and what differs most."""
  rows = found["rows"]
  lines = []
  for part, label in _PARTS.items():
    tried = {name: row[part] for name, row in rows.items() if part in row}
    works = {name: each for name, each in tried.items() if each["works"]}
    losses = {
      each["difference"]: name
      for name, each in works.items()
      if each.get("difference") is not None
    }
    worst = max(losses, default=None)
    said = "-" if worst is None else f"{worst:.0e} ({losses[worst]})"
    if works:
      middle_s = statistics.median(each["seconds"] for each in works.values())
      count = f"{len(works)} of {len(tried)}"
      lines.append([label, count, f"{middle_s:.0f}", said])
  table = lib.markdown(("", "works", "s", "largest difference"), lines)
  compiled = [
    row["xla"] for row in rows.values() if "units" in row.get("xla", {})
  ]
  text = f"{table}\n\n"
  if compiled:
    least, most = (
      [of(each[key] for each in compiled) for key in ("units", "clusters")]
      for of in (min, max)
    )
    kept = [sum(map(_number, each["notes"])) for each in compiled]
    text += (
      f"Units: {least[0]} to {most[0]} a step, in {least[1]} to {most[1]}"
      f" programs of XLA. {sum(map(bool, kept))} models have ops that XLA lacks"
      f" or refuses, up to {max(kept)}.\n\n"
    )
  return {"users_models": text + lib.caption(found)}


def _number(note: str) -> int:
  """Returns the number of ops in a note."""
  found = re.search(r"\d+(?= ops)", note)
  return int(found[0]) if found else 0


if __name__ == "__main__":
  OPTIONS.run(main)
