"""Planning of Keras models, from a request to a placement.

A request is checked on creation. The search runs at once or during the first
fit. Planning may build the model but does not change it otherwise.
"""

import contextlib
import dataclasses
import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from tfplace.core.argument_checks import check_count
from tfplace.core.cluster import Cluster, with_max_memory
from tfplace.core.order import ARRIVAL
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import ExtractionError, TfplaceError
from tfplace.extraction import TracedStep, stages, trace_keras
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.microbatches import WHOLE, SplitConfig
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE
from tfplace.keras import given
from tfplace.keras.controller import Planner
from tfplace.plan import local_devices, local_step, split_check
from tfplace.plan import plan as plan_lib
from tfplace.plan.choice import in_words
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.microbatches import make_auto_plan, split_hint
from tfplace.plan.plan import AppliedPlacement, Plan
from tfplace.plan.planner import (
  CHOOSING,
  PlanConfig,
  PlanResult,
  Stages,
  is_beaten,
  make_plan,
)
from tfplace.plan.race import SplitStep
from tfplace.plan.sources import DEFAULT_COSTS, check_costs, op_graph

_logger = logging.getLogger("tfplace")
_MEASURED, _ESTIMATED = "measured", "estimated"
_SILENCE_S = 10.0  # A silent stage is logged after so many seconds.


@dataclasses.dataclass(frozen=True)
class Request:
  """Checked arguments of `place_model` or `plan_model`.

  Attributes:
    cluster: cluster to plan for.
    config: settings of the planner.
    batch_size: batch size to plan for. None takes the size of the batch, or
      Keras' default of 32.
    keep_together: names of layers or patterns; each tuple shares one device.
    limited: whether the user set memory limits, which also apply to a single
      device.
    verbose: 1 prints each stage.
    costs: name of the cost model for estimated costs.
    measured: whether the step is run to measure its costs.
    is_what_if: whether the plan is not applied.
    split: microbatches of the training step.
    chooses_split: whether the number of microbatches is chosen together with
      the placement. `split` then holds the constraints.
    check: whether a microbatched step is compared numerically with the whole
      step.
  """

  cluster: Cluster
  config: PlanConfig
  batch_size: int | None
  keep_together: tuple[tuple[str, ...], ...] = ()
  limited: bool = False
  verbose: int = 0
  costs: str = DEFAULT_COSTS
  measured: bool = False
  is_what_if: bool = False
  split: SplitConfig = WHOLE
  chooses_split: bool = False
  check: bool = True


def make_request(
  cluster: ClusterLike | None,
  strategy: str,
  batch_size: int | None,
  budget_s: float,
  seed: int,
  max_memory: Mapping[str, str | float] | None = None,
  keep_together: Iterable[given.LayerGroup] = (),
  verbose: str | int = "auto",
  costs: str | None = None,
  is_what_if: bool = False,
  split: SplitConfig = WHOLE,
  chooses_split: bool = False,
  order: str = ARRIVAL,
  init_placement: given.PlanLike | None = None,
  check: bool = True,
) -> Request:
  """Creates a request and checks all that does not require a graph.

  The arguments are those of `place_model`. With `is_what_if`, the plan is not
  applied, and its devices need not belong to this process.

  Raises:
    ApplyError: this process lacks a device.
    TfplaceError: the strategy is unknown (the message lists the choices), or
      another argument is invalid.
  """
  described = find_cluster(cluster)
  if costs is None:
    costs = _MEASURED if cluster is None else _ESTIMATED
  if not is_what_if or costs == _MEASURED:
    local_devices.check_cluster(described)
  start = None
  if init_placement is not None:
    start = given.assignments_of(init_placement)
  config = PlanConfig(
    strategy, budget_s, seed, init_placement=start, order=order
  )
  config.check()
  split.check()
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  model = DEFAULT_COSTS if costs in (_MEASURED, _ESTIMATED) else costs
  check_costs(model)
  if not isinstance(max_memory or {}, Mapping):
    raise TfplaceError(
      "max_memory is a mapping from devices to sizes, such as"
      f" {{'GPU:0': '10GiB'}}, not {max_memory!r:.60}"
    )
  if not isinstance(check, bool | np.bool_):
    raise TfplaceError(f"check is {check!r:.60}; it must be True or False")
  return Request(
    with_max_memory(described, max_memory or {}),
    config,
    batch_size,
    given.check_groups(keep_together),
    bool(max_memory),
    check_verbose(verbose),
    model,
    costs == _MEASURED,
    is_what_if,
    split,
    chooses_split,
    check,
  )


def searching(model: keras.Model, request: Request) -> Planner:
  """Returns a planner that carries out the request when it is called."""

  def planner(kind: str, data: Any) -> tuple[Plan | None, AppliedPlacement]:
    applied = _searched(model, request, kind, data)
    level = logging.INFO
    if applied.one_device or _costs_time(applied):
      level = logging.WARNING
    _print_or_log(
      f"model {model.name!r} {applied.message}", request.verbose, level
    )
    stays = request.is_what_if or given.stays(applied)
    if stays or applied.placement is None:
      return None, applied
    return plan_lib.from_placement(applied.placement), applied

  return planner


def _searched(
  model: keras.Model, request: Request, kind: str, data: Any
) -> AppliedPlacement:
  """Searches the placement of one step unless there is only one device."""
  split = request.split if kind == "train" else WHOLE
  chooses = request.chooses_split and kind == "train"
  default = local_devices.default_device()
  names = [device.name for device in request.cluster.devices]
  if names == [default] and not (request.limited or chooses):
    return plan_lib.only_device(default, model.name, kind == "train", split)
  show = Stages(_Shown(model.name, request.verbose).stage)
  opened = _Opened(model, request, kind, data, show)
  if chooses:
    plan, step = make_auto_plan(opened.step, split, request.config, show)
  else:
    step = opened.step(split)
    plan = make_plan(step.problem, request.config, show)
  if plan.choice is not None:
    split = plan.choice.split
  try:
    unchecked = opened.check(step, split)
  except ExtractionError as error:
    if not chooses:
      raise
    split, unchecked = WHOLE, f"the step is left whole: {error}"
    step = opened.step(WHOLE)
    plan = make_plan(step.problem, request.config, show)
  traced = cast(TracedStep, step.traced)  # `opened` always traces.
  notes = filter(None, (_note(plan, opened), plan.order_reason, unchecked))
  applied = _described(plan, traced, request, "; ".join(notes))
  text = f"model {model.name!r}: {_seconds_phrase(show.seconds)}"
  _print_or_log(text, request.verbose, logging.INFO)
  return dataclasses.replace(applied, seconds=show.seconds, split=split)


def _note(plan: PlanResult, opened: "_Opened") -> str:
  """Describes the chosen microbatches, or suggests microbatches.

  Devices that share one physical device gain nothing from microbatches.
  """
  if plan.choice is not None:
    return plan.choice.reason
  if opened.request.chooses_split:  # The chosen split failed the check.
    return ""
  names = [device.name for device in opened.request.cluster.devices]
  shared = local_devices.shared_phrase(names)
  if opened.kind != "train" or not opened.request.split.is_whole or shared:
    return ""
  return split_hint(opened.step, plan, opened.request.config, opened.show)


@dataclasses.dataclass
class _Opened:
  """Extractor of the step variants of one model.

  Attributes:
    model: the model. Optimizer slots share the device of their variables.
    request: the request.
    kind: kind of the step.
    data: one batch of the step, or None.
    show: reports and times the stages.
  """

  model: keras.Model
  request: Request
  kind: str
  data: Any
  show: Stages
  _measured: bool | None = None  # None until the first costs are known.
  _whole: SplitStep | None = None  # None until the whole step is traced.

  def step(self, split: SplitConfig) -> SplitStep:
    """Traces a step variant and computes the costs of its ops.

    Raises:
      ApplyError: a name in `request.keep_together` matches nothing.
      TfplaceError: the step cannot be split this way, or it cannot be run
        although other variants have measured costs.
    """
    request, parts = self.request, ""
    if not split.is_whole:
      parts = f" {in_words(split)}"
    with self.show("tracing", f" its {self.kind} step{parts}"):
      traced = trace(self.model, request, self.kind, self.data, split)
    with self.show("costs", f" of {len(traced.graph_def.node):,} ops"):
      graph = op_graph(traced, request.cluster, costs=request.costs)
      graph = given.grouped(graph, traced, self.model, request.keep_together)
    problem = Problem(graph, request.cluster)
    if request.measured and self._measured is not False:
      with self.show("measuring", " its step on one device, for a few seconds"):
        problem = self._with_measured_costs(problem, traced)
    step = SplitStep(problem, traced)
    if split.is_whole:
      self._whole = step
    return step

  def check(self, step: SplitStep, split: SplitConfig) -> str:
    """Compares a microbatched step numerically with the whole step.

    Returns:
      The reason if the steps were not compared. "" if they were, if the step is
      whole, or if `request.check` is False.

    Raises:
      ExtractionError: the steps differ.
    """
    if split.is_whole or not self.request.check:
      return ""
    why = ""
    if split.allow_batch_statistics and _has_batch_statistics(self.model):
      why = "statistics of microbatches are allowed to differ"
    else:
      traced = cast(TracedStep, step.traced)
      why = split_check.why_not(step.problem.graph, traced, split.max_in_flight)
      if not why:
        with self.show("checking", f" the step {in_words(split)} by numbers"):
          split_check.check_split(self._traced_whole(), traced)
    return f"not checked by numbers: {why}" if why else ""

  def _traced_whole(self) -> TracedStep:
    """Returns the trace of the whole step."""
    if self._whole is not None:
      return cast(TracedStep, self._whole.traced)
    return trace(self.model, self.request, self.kind, self.data)

  def _with_measured_costs(
    self, problem: Problem, traced: TracedStep
  ) -> Problem:
    """Replaces estimated costs by measured costs if the step can be run.

    All step variants use the kind of costs of the first one, so that they are
    comparable.
    """
    try:
      problem = local_step.measured_problem(problem, traced)
    except TfplaceError as error:
      if self._measured:
        raise
      self._measured = False
      _logger.warning(
        "model %r is placed by estimated costs: %s", traced.name, error
      )
    else:
      self._measured = True
    return problem


def _has_batch_statistics(model: keras.Model) -> bool:
  return any(
    isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    for layer in model._flatten_layers()
  )


def trace(
  model: keras.Model,
  request: Request,
  kind: str,
  data: Any = None,
  split: SplitConfig = WHOLE,
) -> TracedStep:
  """Traces the step `kind`, on one batch if it is given.

  Raises:
    ExtractionError: shapes, loss or optimizer are unknown.
  """
  sample = None
  if data is not None:
    sample = _sample(model, data, request.batch_size, kind)
  return trace_keras(
    model, request.batch_size, sample=sample, kind=kind, split=split
  )


def _sample(
  model: keras.Model, data: Any, batch_size: int | None, kind: str
) -> Any:
  """Returns zeros shaped like `data`, since a traced batch has only shapes."""
  own_size = inputs.static_batch_size(model)

  def zeros(tensor: Any) -> Any:
    if tensor is None:
      return None
    shape = list(tensor.shape)
    if shape and (shape[0] is None or batch_size):
      shape[0] = batch_size or own_size or DEFAULT_BATCH_SIZE
    if None in shape:
      raise ExtractionError(
        f"a batch of model {model.name!r} has shape {tuple(tensor.shape)}, and"
        " planning must know all but the first dimension: plan with"
        " plan_model(model, sample=...) and give place_model that plan"
      )
    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
      return np.full(shape, b"", object)
    return np.zeros(shape, dtype.as_numpy_dtype)

  if inputs.has_own_step(model, kind):
    return keras.tree.map_structure(zeros, data)
  x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
  x, y, weight = keras.tree.map_structure(zeros, (x, y, weight))
  if weight is not None:
    return x, y, weight
  return (x,) if y is None else (x, y)


def _described(
  plan: PlanResult, traced: TracedStep, request: Request, note: str
) -> AppliedPlacement:
  """Describes the selected placement.

  Strategy "auto" selects one device if nothing is faster. The placement of a
  strategy given by name is always selected.
  """
  result, single = plan.best, plan.single_device
  used = _devices(result.placement)
  is_auto = request.config.strategy == CHOOSING
  beaten = is_beaten(result, single)
  one_device = len(used) == 1 or (is_auto and beaten)
  is_split = plan.choice is not None and not plan.choice.split.is_whole
  if one_device and single is not None and is_auto and not is_split:
    result = single
    used = _devices(result.placement)
  return plan_lib.planned(result, single, used, one_device, traced, note)


def _costs_time(applied: AppliedPlacement) -> bool:
  """Returns whether a single device is predicted to be as fast."""
  placed, single = applied.evaluation, applied.single_device
  if placed is None or single is None:
    return False
  return placed.step_time_us >= single.step_time_us


def _devices(placement: Placement) -> tuple[str, ...]:
  cluster = placement.problem.cluster
  names = [cluster.devices[i].name for i in np.unique(placement.devices)]
  full = local_devices.full_names({name: name for name in names})
  return tuple(sorted(full.values()))


def check_verbose(verbose: str | int) -> int:
  """Converts the `verbose` argument to 0 or 1.

  "auto" becomes 1 on a terminal or in a notebook if Keras' interactive logging
  is on.

  Raises:
    TfplaceError: the value is not "auto", 0, 1 or 2.
  """
  if verbose == "auto":
    return int(keras.config.is_interactive_logging_enabled() and _is_watched())
  if isinstance(verbose, str) or verbose not in (0, 1, 2):
    raise TfplaceError(f"verbose is {verbose!r:.60}; it must be 'auto', 0 or 1")
  return int(bool(verbose))


def _is_watched() -> bool:
  return (
    sys.stdout.isatty() or hasattr(sys, "ps1") or "ipykernel" in sys.modules
  )


class _Shown:
  """Progress display in Keras' style, on standard output or in a log."""

  def __init__(self, model: str, verbose: int) -> None:
    """Takes the name of the model; prints to standard output if `verbose`."""
    self._model = model
    self._verbose = verbose

  @contextlib.contextmanager
  def stage(
    self, stage: str, detail: str, seconds: float | None
  ) -> Iterator[stages.OnStage]:
    """Prints the start of a stage, or logs a stage that takes too long."""
    text = f"planning model {self._model!r}: {stage}{detail}"
    timer = threading.Timer(_SILENCE_S, _logger.warning, ["%s", text])
    timer.daemon = True
    if self._verbose:
      print(text, flush=True)
    elif seconds is None:
      timer.start()
    try:
      yield stages.ignore
    finally:
      timer.cancel()


def _seconds_phrase(seconds: Mapping[str, float]) -> str:
  """Lists the seconds of all stages of at least 0.1 s in one phrase."""
  whole = sum(seconds.values())
  parts = [f"{k} {v:.1f} s" for k, v in seconds.items() if v >= 0.1]
  return f"planned in {whole:.1f} s ({', '.join(parts) or 'at once'})"


def _print_or_log(text: str, verbose: int, level: int) -> None:
  if verbose:
    print(text, flush=True)
  else:
    _logger.log(level, "%s", text)
