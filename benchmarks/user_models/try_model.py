"""One model in a process of its own: fitted, planned, placed, saved.

The process has logical CPU devices. It fits the model as it is, plans it for
`--cluster` without and with microbatches, places an equal model on its own
devices, fits that, and compares the losses. `--out` has a JSON object that is
complete after each part; a part that fails holds its error.

  python -m benchmarks.user_models.try_model --model=bert --out=bert.json
"""

import contextlib
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from absl import flags

from benchmarks.lib import command
from benchmarks.lib.command import Options
from benchmarks.user_models import registry
from tfplace.formats.json_file import write_json

OPTIONS = Options("try_model", __doc__)
_MODEL = OPTIONS.add("model", "bert", "Name of the model.")
_MODULE = OPTIONS.add(
  "module", "benchmarks.user_models.registry", "Module that has `MODELS`."
)
_CLUSTER = OPTIONS.add("cluster", "v100x4", "Cluster to plan for.")
_BUDGET = OPTIONS.add("budget_s", 10.0, "Seconds of each search.", least=0.0)
_DEVICES = OPTIONS.add("devices", 2, "Logical CPU devices.", least=1)
_KERAS_FILE = OPTIONS.add("keras_file", None, "Where the model is saved.")
_OUT = OPTIONS.add("out", None, "JSON file to write.")

_MOST_TEXT = 4000  # Characters of a message that a row keeps.
_LARGE = 1e-5  # Differences of losses above it are compared with a second fit.


class Row:
  """Parts of the row, saved after each."""

  def __init__(self, path: str | None) -> None:
    self._path = path
    self.parts: dict[str, Any] = {}

  def add(self, name: str, attempt: Callable[[], dict[str, Any]]) -> bool:
    """Makes an attempt and saves what it returns, or its error."""
    self.parts[name] = attempted(attempt)
    if self._path is not None:
      write_json(pathlib.Path(self._path), self.parts)
    return self.parts[name]["works"]


def attempted(attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
  """Returns seconds, warnings, and the attempt's result or its error."""
  began = time.perf_counter()
  with _warnings() as logged:
    try:
      found = {"works": True, **attempt()}
    except Exception as error:  # A row says of any error what it was.
      found = {
        "works": False,
        "error": one_line(str(error)),
        "error_type": type(error).__name__,
      }
  found["wall_s"] = round(time.perf_counter() - began, 2)
  return {**found, "logged": logged} if logged else found


def one_line(text: str) -> str:
  """Returns a message of several lines as one."""
  return " ".join(text.split())[:_MOST_TEXT]


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
  """Collects what tfplace logs as warnings."""
  found: list[str] = []
  handler = logging.Handler(logging.WARNING)
  handler.emit = lambda record: found.append(record.getMessage()[:_MOST_TEXT])
  logger = logging.getLogger("tfplace")
  logger.addHandler(handler)
  try:
    yield found
  finally:
    logger.removeHandler(handler)


class Trial:
  """The attempts on one model.

  Args:
    name: of the model.
    module: module that has `MODELS`.
    cluster: cluster to plan for.
    budget_s: seconds of each search.
    keras_file: where the model is saved; None saves nothing.
  """

  def __init__(
    self,
    name: str,
    module: str,
    cluster: str,
    budget_s: float,
    keras_file: str | None = None,
  ) -> None:
    self._name, self._cluster, self._budget_s = name, cluster, budget_s
    self._keras_file = keras_file
    self._entry = registry.models_of(module)[name]
    self._case: registry.Case | None = None
    self._losses: list[dict[str, float]] = []

  def run(self, row: Row) -> None:
    """Makes all attempts, in the order in which a user would."""
    if not row.add("fit", self.fit):
      return
    if not row.add("plan", self.plan):
      row.add("plan_with_sample", self.plan_with_sample)
    row.add("plan_auto", lambda: self.plan(microbatches="auto"))
    if self._keras_file is not None:
      row.add("save", self.save)
    row.add("place", self.place)

  def fit(self) -> dict[str, Any]:
    """Fits the model as it is."""
    began = time.perf_counter()
    self._case = self._built()
    built = time.perf_counter()
    self._losses = fitted(self._case)
    return {
      "build_s": round(built - began, 2),
      "fit_s": round(time.perf_counter() - built, 2),
      "steps": len(self._losses),
    }

  def plan(self, **options: Any) -> dict[str, Any]:
    """Plans the fitted model for the cluster."""
    import tfplace

    plan = tfplace.plan_model(
      self._case.model, self._cluster, budget_s=self._budget_s, **options
    )
    return described(plan)

  def plan_with_sample(self) -> dict[str, Any]:
    """Plans with a batch, where the model is refused without."""
    return self.plan(sample=first_batch(self._case))

  def save(self) -> dict[str, Any]:
    """Saves the fitted model."""
    self._case.model.save(self._keras_file)
    return {}

  def place(self) -> dict[str, Any]:
    """Places an equal model on this process's devices, and fits it."""
    import tfplace

    case = self._built()
    placed = tfplace.place_model(case.model, budget_s=self._budget_s)
    began = time.perf_counter()
    losses = fitted(case)
    found = {
      "fit_s": round(time.perf_counter() - began, 2),
      "difference": largest_difference(self._losses, losses),
      **described(placed.placement),
    }
    if found["difference"] is None or found["difference"] > _LARGE:
      again = fitted(self._built())
      found["difference_unplaced"] = largest_difference(self._losses, again)
    return found

  def _built(self) -> registry.Case:
    """Builds the model; weights and random numbers are equal in each call."""
    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    return self._entry.load(self._name)


def fitted(case: registry.Case) -> list[dict[str, float]]:
  """Fits a model without XLA, as placed models run; returns losses by step."""
  import keras
  import tensorflow as tf

  found: list[dict[str, float]] = []
  keep = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda _, logs: found.append(losses_of(logs))
  )
  case.model.jit_compile = False
  dataset = tf.data.Dataset.from_tensor_slices(case.data)
  case.model.fit(dataset.batch(case.batch_size), verbose=0, callbacks=[keep])
  return found


def first_batch(case: registry.Case) -> Any:
  """Returns the first examples of the data, in the same structure."""
  import keras

  return keras.tree.map_structure(
    lambda array: array[: case.batch_size], case.data
  )


def losses_of(logs: Mapping[str, Any]) -> dict[str, float]:
  """Returns losses among the logs of a step; metrics may be rounded apart."""
  return {k: float(v) for k, v in logs.items() if "loss" in k}


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


def described(plan: Any) -> dict[str, Any]:
  """Returns what a plan says of itself."""
  found = {
    "seconds": {k: round(v, 2) for k, v in plan.seconds.items()},
    "message": plan.message[:_MOST_TEXT],
    "text": str(plan)[:_MOST_TEXT],
    "strategy": plan.strategy,
    "one_device": plan.one_device,
    "microbatches": plan.microbatches,
  }
  if plan.placement is not None:
    found["ops"] = plan.placement.problem.graph.num_ops
  if plan.evaluation is not None:
    found["step_time_us"] = plan.evaluation.step_time_us
    found["ratio_to_bound"] = plan.evaluation.ratio_to_bound
  if plan.single_device is not None:
    found["single_us"] = plan.single_device.step_time_us
  return found


def main(_: flags.FlagValues) -> None:
  import tensorflow as tf

  models = registry.models_of(_MODULE.value)
  command.check_names("model", [_MODEL.value], models)
  cpu = tf.config.list_physical_devices("CPU")[0]
  logical = [tf.config.LogicalDeviceConfiguration()] * _DEVICES.value
  tf.config.set_logical_device_configuration(cpu, logical)
  trial = Trial(
    _MODEL.value,
    _MODULE.value,
    _CLUSTER.value,
    _BUDGET.value,
    _KERAS_FILE.value,
  )
  trial.run(Row(_OUT.value))


if __name__ == "__main__":
  OPTIONS.run(main)
