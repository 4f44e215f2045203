"""Planning facade, which commands and Keras call: from a source to a plan."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from tfplace.core.microbatches import (
  WHOLE,
  VariantConfig,
  microbatches_of,
)
from tfplace.core.placement import Placement
from tfplace.core.units import format_bytes
from tfplace.cost.uncertainty import comparison_in_words
from tfplace.errors import ExtractionError
from tfplace.placers.beside_gpus import cpu_note
from tfplace.placers.dask_workers import opened_workers
from tfplace.placers.idle_devices import idle_reason
from tfplace.plan.config import AUTO, PlanConfig, Stages
from tfplace.plan.microbatches import (
  choose_placement,
  microbatch_hint,
  with_alternatives,
)
from tfplace.plan.plan import Plan
from tfplace.plan.search import PlanReport, is_beaten
from tfplace.plan.variants import OpenVariant, StepVariant
from tfplace.report import summary
from tfplace.simulate import Simulator


class Source(Protocol):
  """Model or file whose step is planned."""

  @property
  def training(self) -> bool:
    """Returns whether the step is a training step."""

  @property
  def suggests_microbatches(self) -> bool:
    """Returns whether microbatches are possible and may gain speed."""

  def open(self, microbatches: VariantConfig, show: Stages) -> StepVariant:
    """Extracts a step variant with the costs of its ops.

    Raises:
      TfplaceError: the step cannot be extracted in these microbatches.
    """

  def compare(
    self, variant: StepVariant, microbatches: VariantConfig, show: Stages
  ) -> str:
    """Compares a microbatched step numerically with the whole step.

    By default, nothing is compared.

    Returns:
      What was not compared, and why, or "".

    Raises:
      ExtractionError: the steps differ.
    """
    return ""


def make_plan(
  source: Source, config: PlanConfig, show: Stages | None = None
) -> Plan:
  """Plans the step of a source.

  Args:
    source: source of the step.
    config: settings.
    show: reports and times the stages.

  Returns:
    The plan, with its report.

  Raises:
    InfeasibleError: no placement fits in memory.
    ExtractionError: the step cannot be extracted, or the requested microbatches
      change its result.
    MeasurementError: `config.measure` is set, and no placement could be run.
    TfplaceError: the placer fails.
  """
  stage = Stages() if show is None else show
  if config.dask is not None and config.workers is None:
    with contextlib.ExitStack() as stack:
      with stage("starting", f" workers by Dask ({config.dask})"):
        opened = opened_workers(config.dask, config.strategy)
        workers = stack.enter_context(opened)
      return make_plan(
        source, dataclasses.replace(config, workers=workers), stage
      )

  def open_variant(microbatches: VariantConfig) -> StepVariant:
    return source.open(microbatches, stage)

  # Phase 1: choose the step variant and the placement.
  unchecked, hint = "", ""
  report, variant = choose_placement(open_variant, config, stage)
  microbatches = _variant_of(report, config)
  # Phase 2: check that microbatches do not change the result.
  if config.compare and not microbatches.is_whole:
    try:
      unchecked = source.compare(variant, microbatches, stage)
    except ExtractionError as error:
      if not config.chooses_microbatches:
        raise
      unchecked = f"the step is left whole: {error}"
      microbatches, report, variant = _placed_whole(open_variant, config, stage)
  # Phase 3: find what to compare with, and suggest microbatches if none were
  # requested.
  report = with_alternatives(
    open_variant, report, config, stage, source.suggests_microbatches
  )
  is_open = microbatches == WHOLE and not config.chooses_microbatches
  if is_open and source.suggests_microbatches:
    hint = microbatch_hint(open_variant, report, config, stage)
  plan = _plan(source, variant, report, config)
  notes = (*_notes(plan, report), hint, unchecked)
  return dataclasses.replace(
    plan,
    microbatch_config=microbatches,
    notes=tuple(_sentence(note) for note in notes if note),
    seconds=stage.seconds,
  )


def _notes(plan: Plan, report: PlanReport) -> Iterator[str]:
  """Yields what to know about a plan, most important first."""
  if plan.placement is None:
    return
  yield (
    f"{plan.costs} op times, searched by {plan.strategy}"
    if report.measured is None
    else f"steps were measured on the devices, searched by {plan.strategy}"
  )
  yield summary.held_back(Simulator(report.problem).schedule(plan.placement))
  yield "" if plan.evaluation is None else comparison_in_words(plan.evaluation)
  yield "" if report.choice is None else report.choice.reason
  yield _variables_on_host(plan.placement)
  yield cpu_note(report.best)
  yield idle_reason(plan.placement)
  yield report.order_reason


def _variables_on_host(placement: Placement) -> str:
  """Returns what a placement on GPUs keeps in host memory, or ""."""
  problem = placement.problem
  is_host = np.array([d.is_cpu for d in problem.cluster.devices])
  on_host = is_host[placement.devices]
  held = problem.graph.persistent_bytes[on_host]
  if on_host.all() or not held.any():
    return ""
  count = np.count_nonzero(held)
  what = "variable is" if count == 1 else "variables are"
  return f"{count} {what} in host memory ({format_bytes(float(held.sum()))})"


def _sentence(text: str) -> str:
  return f"{text[0].upper()}{text[1:]}."


def _variant_of(report: PlanReport, config: PlanConfig) -> VariantConfig:
  """Returns the placed step variant, with the ops that it recomputes."""
  variant = config.microbatches
  if report.choice is not None:
    variant = report.choice.microbatches
  found = microbatches_of(report.problem.graph.traced_names)
  return dataclasses.replace(
    variant, recompute=found.recompute, devices=found.devices
  )


def _placed_whole(
  open_variant: OpenVariant, config: PlanConfig, show: Stages
) -> tuple[VariantConfig, PlanReport, StepVariant]:
  """Places the step without microbatches."""
  whole = dataclasses.replace(
    config.microbatches, count=1, max_in_flight=None, sizes=None
  )
  left = dataclasses.replace(
    config, microbatches=whole, chooses_microbatches=False
  )
  report, variant = choose_placement(open_variant, left, show)
  return _variant_of(report, left), report, variant


def _plan(
  source: Source, variant: StepVariant, report: PlanReport, config: PlanConfig
) -> Plan:
  """Describes the selected placement.

  Strategy "auto" selects one device if nothing is faster. The placement of a
  strategy given by name is always selected.
  """
  result, single = report.best, report.single_device
  alone = None if single is None else report.evaluation_of(single)
  is_auto = config.strategy == AUTO
  beaten = is_auto and is_beaten(report.evaluation_of(result), alone)
  one_device = beaten or len(set(result.placement.devices.tolist())) == 1
  is_chosen = report.choice and not report.choice.is_first
  if one_device and single is not None and is_auto and not is_chosen:
    result = single
  graph, traced = report.problem.graph, variant.traced
  reference = report.reference
  measured = graph.extra.get("costs") == "measured"
  return Plan(
    model=graph.name if traced is None else traced.name,
    strategy=result.strategy,
    training=source.training,
    one_device=one_device,
    placement=result.placement,
    evaluation=report.evaluation_of(result),
    single_device=None
    if reference is None
    else report.evaluation_of(reference),
    costs="measured" if measured else "estimated",
    report=report,
    step=None if traced is None else traced.without_values(),
  )
