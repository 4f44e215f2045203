"""Planning of Keras models, from a request to a plan.

A request is checked on creation. The search runs at once or during the first
fit. Planning may build the model but does not change it otherwise.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

import keras

from tfplace.errors import ApplyError, ExtractionError
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.kernels import xla_compiles
from tfplace.extraction.nodes import split_tensor
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.cluster import with_max_memory
from tfplace.graph.microbatches import WHOLE, is_auto
from tfplace.graph.quantities import format_us
from tfplace.keras import progress
from tfplace.keras.controller import own_steps
from tfplace.keras.steps import KerasSource, KerasSteps
from tfplace.plan import local_devices
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import NONE, SINGLE, PlanConfig
from tfplace.plan.plan import Plan, printer
from tfplace.plan.planner import make_plan
from tfplace.plan.stages import Stages
from tfplace.variants import fused_norm
from tfplace.variants.microbatches import microbatched_step
from tfplace.variants.units import forming

_OF_SEARCH = {
  *("strategy", "order", "dask", "costs", "max_memory", "keep_together")
}
_NOT_PLANNED = "is for planning, and a placement that is given is not planned"


def check_nothing_to_plan(options: Mapping[str, Any]) -> None:
  """Raises ApplyError for an option that a given placement does not take."""
  for name, value in options.items():
    if is_auto(value):
      if name in ("microbatches", "recompute"):
        raise ApplyError(f"{name}='auto' {_NOT_PLANNED}")
    elif value and name in _OF_SEARCH:
      raise ApplyError(f"{name} {_NOT_PLANNED}")


class KerasPlanner:
  """Planner of the steps of a Keras model.

  Attributes:
    config: the request.
    cluster: cluster to plan for, within the user's memory limits.
    is_local: whether the devices are this process's, not described ones.
  """

  def __init__(
    self,
    model: keras.Model,
    cluster: ClusterLike | None,
    options: Mapping[str, Any],
    *,
    init_placement: Mapping[str, str] | None = None,
    is_what_if: bool = False,
  ) -> None:
    """Checks all that does not require a graph.

    Args:
      model: model to plan.
      cluster: see `place_model`.
      options: `PlanOptions`.
      init_placement: placement from which the search starts, or None.
      is_what_if: whether the plan is not applied. Its devices need not belong
        to this process then.

    Raises:
      ApplyError: this process lacks a device.
      ExtractionError: the step is known to be impossible to split.
      TfplaceError: an option is invalid.
    """
    config = PlanConfig.from_options(options, init_placement=init_placement)
    if config.measures_costs is None:
      config = dataclasses.replace(config, measures_costs=cluster is None)
    described = find_cluster(cluster)
    if not is_what_if or config.measures_costs:
      local_devices.check_cluster(described)
    if model.compiled and not config.variant.is_whole:
      microbatched_step.check_microbatches(model, config.variant)
      if config.batch_size is not None:
        config.variant.check_batch(config.batch_size)
    self.config = config
    self.cluster = with_max_memory(described, config.max_memory)
    self.is_local = not (is_what_if and isinstance(cluster, str))
    self._model = model
    self._verbose = progress.check_verbose(options.get("verbose", "auto"))

  def check_splits(self) -> None:
    """Checks that only the step of a compiled model is to be split.

    Raises:
      ExtractionError: the model is not compiled.
    """
    config, name = self.config, "microbatches"
    if config.variant.is_whole:
      name = "recompute"
      if config.variant.recompute.is_none and not config.chooses_recomputation:
        return
    if not self._model.compiled:
      raise ExtractionError(
        f"{name} is given, and model {self._model.name!r} is not compiled: only"
        " a training step is split, or recomputes"
      )

  def __call__(
    self, kind: str, data: Any = None, told_size: int | None = None
  ) -> Plan:
    """Plans a step of one of `state.KINDS` on a batch, if there is one.

    Args:
      data: the batch; its size may be unknown, since the last one may be
        smaller.
      told_size: examples of a batch of unknown size, or None.
    """
    with own_steps(self._model):
      plan = self._plan(kind, data, told_size)
    level = logging.INFO
    if plan.one_device or _is_slower(plan):
      level = logging.WARNING
    text = f"model {self._model.name!r}: {plan.message}"
    progress.print_or_log(text, self._verbose, level)
    return plan

  def _config(self, kind: str, told_size: int | None) -> PlanConfig:
    """Returns the settings for a step, and a batch of the size told if any."""
    config = self.config
    if inputs.static_batch_size(self._model) is None:
      size = config.batch_size or told_size
      config = dataclasses.replace(config, batch_size=size)
    if kind == "train":
      return config
    return dataclasses.replace(
      config,
      variant=WHOLE,
      chooses_microbatches=False,
      chooses_recomputation=False,
    )

  def _plan(self, kind: str, data: Any, told_size: int | None) -> Plan:
    """Plans one step unless there is only one device."""
    model, cluster = self._model, self.cluster
    config = self._config(kind, None if data is None else told_size)
    names = [device.name for device in cluster.devices]
    is_free = (
      config.max_memory
      or config.chooses_variant
      or not config.variant.recompute.is_none
    )
    if names == [local_devices.default_device()] and not is_free:
      return Plan(
        model.name,
        SINGLE,
        variant=config.variant,
        training=kind == "train",
        one_device=True,
      )
    show = Stages(progress.stage_display(model.name, self._verbose))
    if config.measures_costs and local_devices.lacks_links(cluster):
      with show("measuring", " the links between its devices") as on_stage:
        cluster = local_devices.with_measured_links(cluster, on_stage)
    source = KerasSource(
      "keras_model",
      model.name,
      kind == "train",
      config.batch_size,
      sample=data,
      model=model,
      step=kind,
    )
    steps = KerasSteps(source, cluster, config, self.is_local)
    plan = make_plan(steps, config, show)
    unplaced_us = None if config.max_memory else steps.unplaced_us(show)
    if unplaced_us is not None:
      plan = _against_unplaced(plan, unplaced_us, config)
    seconds = printer().seconds_phrase(show.seconds)
    text = f"model {model.name!r}: {seconds}"
    progress.print_or_log(text, self._verbose, logging.INFO)
    is_compiled = source.is_compiled_on(cluster)
    notes = [*plan.notes, _left_out(plan), _other_draws(plan, is_compiled)]
    if fused_norm.is_named(plan.ops):
      notes.append(steps.unfused_note(show))
    if self.is_local and not plan.one_device:
      notes.insert(0, local_devices.shared_note(plan.devices))
    is_open = data is None and config.batch_size is None
    is_open = is_open and inputs.static_batch_size(model) is None
    if is_open and plan.batch_size == DEFAULT_BATCH_SIZE:
      notes.append(
        f"The batch has Keras' default of {DEFAULT_BATCH_SIZE} examples: give"
        " batch_size for another."
      )
    return dataclasses.replace(plan, notes=tuple(filter(None, notes)))


def _against_unplaced(
  plan: Plan, unplaced_us: float, config: PlanConfig
) -> Plan:
  """Leaves the model unplaced unless `auto` found something faster.

  A step that the user divides, or lets recompute, stays placed.
  """
  outcome, planned = plan.outcome, plan.evaluation
  if outcome is None or planned is None or outcome.reference is None:
    return plan
  note = (
    f"The placed step takes {format_us(planned.step_time_us)}, the unplaced one"
    f" with XLA {format_us(unplaced_us)}"
  )
  asked = config.variant
  is_free = asked.is_whole and asked.recompute.is_none
  is_faster = planned.step_time_us < unplaced_us
  if is_faster or config.strategy != AUTO or not is_free:
    return dataclasses.replace(plan, notes=(f"{note}.", *plan.notes))
  single = outcome.reference
  return plan.with_placement(
    single.placement,
    strategy=single.strategy,
    one_device=True,
    variant=WHOLE,
    evaluation=outcome.evaluation_of(single),
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


def _other_draws(plan: Plan, is_compiled: bool) -> str:
  """Returns why random numbers are not those of the unplaced step, or "".

  `is_compiled` tells whether XLA compiles the unplaced step.
  """
  nodes = () if plan.step is None else plan.step.graph_def.node
  if not any(forming.is_random(node.op) for node in nodes):
    return ""
  if not plan.variant.is_whole:
    why = "each microbatch draws its own"
  elif is_compiled and plan.compile == NONE and not plan.one_device:
    why = "XLA, which compiles that step, draws others"
  else:
    return ""
  return f"Dropout has other masks than in the unplaced step: {why}."


def _is_slower(plan: Plan) -> bool:
  """Returns whether a single device is predicted to be as fast."""
  planned, single = plan.evaluation, plan.single_device
  if planned is None or single is None:
    return False
  return planned.step_time_us >= single.step_time_us
