"""Planning of Keras models, from a request to a plan.

A request is checked on creation. The search runs at once or during the first
fit. Planning may build the model but does not change it otherwise.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import keras
import numpy as np

from tfplace.core.argument_checks import check_count
from tfplace.core.cluster import with_max_memory
from tfplace.core.microbatches import (
  WHOLE,
  VariantConfig,
  check_in_flight,
  is_auto,
)
from tfplace.core.recompute import NONE, recompute_config
from tfplace.core.units import format_us
from tfplace.errors import ApplyError, TfplaceError
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.kernels import xla_compiles
from tfplace.extraction.microbatches import microbatched_step
from tfplace.extraction.nodes import split_tensor
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE
from tfplace.keras import progress
from tfplace.keras.controller import Planner
from tfplace.keras.given_placement import stays
from tfplace.keras.layer_groups import LayerGroup, check_groups
from tfplace.keras.step_source import KerasSource, Request
from tfplace.plan import Plan, PlanConfig, Stages, local_devices, make_plan
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import AUTO, SINGLE
from tfplace.plan.device_map import from_placement
from tfplace.plan.plan import seconds_phrase
from tfplace.plan.sources import DEFAULT_COSTS, check_compile, check_costs

_MEASURED, _ESTIMATED = "measured", "estimated"
_OF_CONFIG = ("strategy", "budget_s", "gap", "seed", "order", "dask")
_OF_SEARCH = {
  "strategy",
  "order",
  "dask",
  "costs",
  "max_memory",
  "keep_together",
}
_NOT_PLANNED = "is for planning, and a placement that is given is not planned"


class PlanOptions(TypedDict, total=False):
  """Keyword arguments of `place_model` and `plan_model`, described there."""

  strategy: str
  batch_size: int | None
  budget_s: float
  gap: float
  seed: int
  max_memory: Mapping[str, str | float] | None
  keep_together: Iterable[LayerGroup]
  verbose: str | int
  costs: str | None
  microbatches: int | Sequence[int] | str
  max_in_flight: int | None
  allow_batch_statistics: bool
  recompute: str | Sequence[str | Sequence[str]]
  order: str
  check: bool
  compile: str
  dask: str | None


def check_names(function: str, options: Iterable[str], *also: str) -> None:
  """Raises TypeError for an option that `function` does not take."""
  for name in options:
    if name not in PlanOptions.__annotations__ and name not in also:
      raise TypeError(f"{function}() has no keyword {name!r}")


def check_nothing_to_plan(options: Mapping[str, Any]) -> None:
  """Raises ApplyError for an option that a given placement does not take."""
  for name, value in options.items():
    if is_auto(value):
      if name in ("microbatches", "recompute"):
        raise ApplyError(f"{name}='auto' {_NOT_PLANNED}")
    elif value and name in _OF_SEARCH:
      raise ApplyError(f"{name} {_NOT_PLANNED}")


def make_request(
  model: keras.Model,
  cluster: ClusterLike | None,
  options: Mapping[str, Any],
  *,
  init_placement: Mapping[str, str] | None = None,
  is_what_if: bool = False,
) -> Request:
  """Creates a request and checks all that does not require a graph.

  Args:
    model: model to plan.
    cluster: see `place_model`.
    options: `PlanOptions`.
    init_placement: placement from which the search starts, or None.
    is_what_if: whether the plan is not applied. Its devices need not belong to
      this process then.

  Raises:
    ApplyError: this process lacks a device.
    TfplaceError: the strategy is unknown (the message lists the choices), or
      another argument is invalid.
  """
  described = find_cluster(cluster)
  costs = options.get("costs")
  if costs is None:
    costs = _MEASURED if cluster is None else _ESTIMATED
  check_costs(costs, also=(_MEASURED, _ESTIMATED))
  if not is_what_if or costs == _MEASURED:
    local_devices.check_cluster(described)
  check_compile(options.get("compile", AUTO))
  check = options.get("check", True)
  if not isinstance(check, bool | np.bool_):
    raise TfplaceError(f"check is {check!r:.60}; it must be True or False")
  config = PlanConfig(
    **{name: options[name] for name in _OF_CONFIG if name in options},
    init_placement=init_placement,
    microbatches=step_variant(model, options),
    chooses_microbatches=is_auto(options.get("microbatches")),
    chooses_recomputation=is_auto(options.get("recompute")),
    compare=bool(check),
  )
  batch_size = options.get("batch_size")
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  max_memory = options.get("max_memory") or {}
  if not isinstance(max_memory, Mapping):
    raise TfplaceError(
      "max_memory is a mapping from devices to sizes, such as"
      f" {{'GPU:0': '10GiB'}}, not {max_memory!r:.60}"
    )
  return Request(
    config,
    with_max_memory(described, max_memory),
    batch_size,
    check_groups(options.get("keep_together", ())),
    DEFAULT_COSTS if costs in (_MEASURED, _ESTIMATED) else costs,
    is_measured=costs == _MEASURED,
    is_limited=bool(max_memory),
    is_local=not (is_what_if and isinstance(cluster, str)),
    is_what_if=is_what_if,
    compile=options.get("compile", AUTO),
    verbose=progress.check_verbose(options.get("verbose", "auto")),
  )


def step_variant(
  model: keras.Model, options: Mapping[str, Any]
) -> VariantConfig:
  """Returns the requested step variant; "auto" starts as the whole step.

  Raises:
    ExtractionError: the step is known to be impossible to split.
  """
  microbatches = options.get("microbatches", 1)
  max_in_flight = options.get("max_in_flight")
  config = VariantConfig.of(
    1 if is_auto(microbatches) else microbatches,
    max_in_flight,
    options.get("allow_batch_statistics", False),
    recompute_config(options.get("recompute", NONE), may_choose=True),
  )
  if max_in_flight is not None and not is_auto(microbatches):
    check_in_flight(config)
  if model.compiled and not config.is_whole:
    microbatched_step.check_microbatches(model, config)
  return config


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
  if plan.placement is None:
    return plan
  # Units keep XLA from merging activations with their clones.
  recomputes = not plan.microbatch_config.recompute.is_none
  if stays(plan) and not (recomputes and plan.placement.problem.graph.members):
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
  names = [device.name for device in request.cluster.devices]
  is_free = (
    request.is_limited
    or config.chooses_variant
    or not config.microbatches.recompute.is_none
  )
  if names == [local_devices.default_device()] and not is_free:
    return Plan(
      model.name,
      SINGLE,
      training=kind == "train",
      one_device=True,
      microbatch_config=config.microbatches,
    )
  show = Stages(progress.stage_display(model.name, request.verbose))
  if request.is_measured and local_devices.lacks_links(request.cluster):
    with show("measuring", " the links between its devices") as on_stage:
      cluster = local_devices.with_measured_links(request.cluster, on_stage)
    request = dataclasses.replace(request, cluster=cluster)
  source = KerasSource(model, request, kind, data)
  plan = make_plan(source, config, show)
  unplaced_us = None if request.is_limited else source.unplaced_us(show)
  if unplaced_us is not None:
    plan = _against_unplaced(plan, unplaced_us, config)
  text = f"model {model.name!r}: {seconds_phrase(show.seconds)}"
  progress.print_or_log(text, request.verbose, logging.INFO)
  notes = [*plan.notes]
  notes += filter(None, [_left_out(plan)])
  if request.is_local and not plan.one_device:
    notes += filter(None, [local_devices.shared_note(plan.devices)])
  is_open = data is None and request.batch_size is None
  is_open = is_open and inputs.static_batch_size(model) is None
  if is_open and plan.step and plan.step.batch_size == DEFAULT_BATCH_SIZE:
    notes.append(
      f"The batch has Keras' default of {DEFAULT_BATCH_SIZE} examples: give"
      " batch_size for another."
    )
  return dataclasses.replace(plan, notes=tuple(notes))


def _against_unplaced(
  plan: Plan, unplaced_us: float, config: PlanConfig
) -> Plan:
  """Leaves the model unplaced unless `auto` found something faster.

  A step that the user divides, or lets recompute, stays placed.
  """
  report, found = plan.report, plan.evaluation
  if report is None or found is None or report.reference is None:
    return plan
  note = (
    f"The placed step takes {format_us(found.step_time_us)}, the unplaced one"
    f" with XLA {format_us(unplaced_us)}"
  )
  asked = config.microbatches
  is_free = asked.is_whole and asked.recompute.is_none
  is_faster = found.step_time_us < unplaced_us
  if is_faster or config.strategy != AUTO or not is_free:
    return dataclasses.replace(plan, notes=(f"{note}.", *plan.notes))
  single = report.reference
  return dataclasses.replace(
    plan,
    strategy=single.strategy,
    one_device=True,
    microbatch_config=WHOLE,
    placement=single.placement,
    evaluation=report.evaluation_of(single),
    notes=(f"{note}, so the model stays unplaced.", *plan.notes),
  )


def _left_out(plan: Plan) -> str:
  """Returns which ops of layers XLA lacks in a plan of units, or ""."""
  if plan.placement is None or plan.step is None:
    return ""
  graph = plan.placement.problem.graph
  if not graph.members:
    return ""
  inside = {op for ops in graph.members.values() for op in ops}
  nodes, layers = plan.step.graph_def.node, plan.step.layers
  axes = {node.name for node in nodes if node.op == "BroadcastGradientArgs"}
  unknown = set(graph.extra.get("unknown_shapes", ())) - axes
  lacking = [
    (node.op, layers[node.name][0])
    for node in nodes
    if node.name in layers
    and node.name not in inside
    and node.op != "VarHandleOp"  # A unit reads variables from outside.
    and (
      not xla_compiles(node)
      # XLA knows the shapes of sums over broadcast axes.
      or (
        node.name in unknown
        and axes.isdisjoint(split_tensor(name)[0] for name in node.input)
      )
    )
  ]
  if not lacking:
    return ""
  op, layer = lacking[0]
  return (
    f"XLA does not compile {len(lacking)} ops, such as {op} of layer {layer!r}."
  )


def _is_slower(plan: Plan) -> bool:
  """Returns whether a single device is predicted to be as fast."""
  planned, single = plan.evaluation, plan.single_device
  if planned is None or single is None:
    return False
  return planned.step_time_us >= single.step_time_us
