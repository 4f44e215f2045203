"""Planning of Keras models, from a request to a plan.

A request is checked on creation. The search runs at once or during the first
fit. Planning may build the model but does not change it otherwise.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from tfplace.core.argument_checks import check_count
from tfplace.core.cluster import with_max_memory
from tfplace.core.microbatches import WHOLE
from tfplace.errors import TfplaceError
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE
from tfplace.keras import progress
from tfplace.keras.controller import Planner
from tfplace.keras.given_placement import stays
from tfplace.keras.layer_groups import LayerGroup, check_groups
from tfplace.keras.step_source import KerasSource, StepConfig
from tfplace.plan import Plan, PlanConfig, Stages, local_devices, make_plan
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import SINGLE
from tfplace.plan.device_map import from_placement
from tfplace.plan.plan import seconds_phrase
from tfplace.plan.sources import DEFAULT_COSTS, check_costs

_MEASURED, _ESTIMATED = "measured", "estimated"
# Seconds of running steps for their costs, per second of search; our choice.
_MEASURE_SHARE = 0.25
# The same of one step in the numeric check, which runs two or three.
_CHECK_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class Request:
  """Checked arguments of `place_model` or `plan_model`.

  Attributes:
    config: settings of planning.
    step: the step, its cluster and costs.
    limited: whether the user set memory limits, which also apply to a single
      device.
    verbose: 1 prints each stage.
    is_what_if: whether the plan is not applied.
  """

  config: PlanConfig
  step: StepConfig
  limited: bool = False
  verbose: int = 0
  is_what_if: bool = False


def make_request(
  cluster: ClusterLike | None,
  config: PlanConfig,
  *,
  batch_size: int | None = None,
  max_memory: Mapping[str, str | float] | None = None,
  keep_together: Iterable[LayerGroup] = (),
  verbose: str | int = "auto",
  costs: str | None = None,
  is_what_if: bool = False,
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
  check_costs(costs, also=(_MEASURED, _ESTIMATED))
  if not is_what_if or costs == _MEASURED:
    local_devices.check_cluster(described)
  config.check()
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  model = DEFAULT_COSTS if costs in (_MEASURED, _ESTIMATED) else costs
  if not isinstance(max_memory or {}, Mapping):
    raise TfplaceError(
      "max_memory is a mapping from devices to sizes, such as"
      f" {{'GPU:0': '10GiB'}}, not {max_memory!r:.60}"
    )
  if not isinstance(config.compare, bool | np.bool_):
    raise TfplaceError(
      f"check is {config.compare!r:.60}; it must be True or False"
    )
  step = StepConfig(
    with_max_memory(described, max_memory or {}),
    batch_size,
    check_groups(keep_together),
    model,
    costs == _MEASURED,
    _MEASURE_SHARE * config.budget_s,
    _CHECK_SHARE * config.budget_s,
    is_local=not (is_what_if and isinstance(cluster, str)),
  )
  checked = progress.check_verbose(verbose)
  return Request(config, step, bool(max_memory), checked, is_what_if)


def planner(model: keras.Model, request: Request) -> Planner:
  """Returns a planner that carries out the request when it is called."""

  def plan_step(kind: str, data: Any) -> Plan:
    plan = _plan(model, request, kind, data)
    level = logging.INFO
    if plan.one_device or _is_slower(plan):
      level = logging.WARNING
    text = f"model {model.name!r}: {plan.message}"
    progress.print_or_log(text, request.verbose, level)
    return plan if request.is_what_if else to_apply(plan)

  return plan_step


def to_apply(plan: Plan) -> Plan:
  """Returns a plan with the device map that a placed model follows."""
  if stays(plan) or plan.placement is None:
    return plan
  devices = from_placement(plan.placement)
  return dataclasses.replace(plan, device_map=devices)


def _plan(model: keras.Model, request: Request, kind: str, data: Any) -> Plan:
  """Plans one step unless there is only one device."""
  config = request.config
  if kind != "train":
    config = dataclasses.replace(
      config,
      microbatches=WHOLE,
      chooses_microbatches=False,
      chooses_recomputation=False,
    )
  default = local_devices.default_device()
  names = [device.name for device in request.step.cluster.devices]
  is_free = (
    request.limited
    or config.chooses_variant
    or not config.microbatches.recompute.is_none
  )
  if names == [default] and not is_free:
    return Plan(
      model.name,
      SINGLE,
      training=kind == "train",
      one_device=True,
      microbatch_config=config.microbatches,
    )
  display = progress.StageDisplay(model.name, request.verbose)
  show = Stages(display)
  plan = make_plan(KerasSource(model, request.step, kind, data), config, show)
  display.finish(f"model {model.name!r}: {seconds_phrase(show.seconds)}")
  notes = [*plan.notes]
  if request.step.is_local and not plan.one_device:
    notes += filter(None, [local_devices.shared_note(plan.devices)])
  is_open = data is None and request.step.batch_size is None
  is_open = is_open and inputs.static_batch_size(model) is None
  if is_open and _has_default_batch(plan):
    notes.append(
      f"The batch has Keras' default of {DEFAULT_BATCH_SIZE} examples: give"
      " batch_size for another."
    )
  return dataclasses.replace(plan, notes=tuple(notes))


def _has_default_batch(plan: Plan) -> bool:
  return plan.step is not None and plan.step.batch_size == DEFAULT_BATCH_SIZE


def _is_slower(plan: Plan) -> bool:
  """Returns whether a single device is predicted to be as fast."""
  planned, single = plan.evaluation, plan.single_device
  if planned is None or single is None:
    return False
  return planned.step_time_us >= single.step_time_us
