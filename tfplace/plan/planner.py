"""Planning facade, which commands and Keras call: from a source to a plan."""

import contextlib
import dataclasses
from collections.abc import Iterator

import numpy as np

from tfplace.cost.uncertainty import comparison_in_words
from tfplace.errors import ExtractionError, TfplaceError
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.microbatches import WHOLE, VariantConfig, microbatches_of
from tfplace.graph.placement import Placement
from tfplace.graph.quantities import format_bytes
from tfplace.placers.beside_gpus import cpu_note
from tfplace.placers.dask_workers import opened_workers
from tfplace.placers.idle_devices import idle_reason
from tfplace.placers.registry import LEARNED
from tfplace.plan.config import PlanConfig
from tfplace.plan.graph_keys import versions
from tfplace.plan.plan import Plan, printer
from tfplace.plan.proposals import num_working_devices
from tfplace.plan.search import Outcome, is_on_cpus, on_one_device
from tfplace.plan.stages import Stages
from tfplace.plan.steps import Steps
from tfplace.plan.variant_search import choose_variant
from tfplace.plan.variants import in_words

_PACKAGES = ("tfplace", "tensorflow", "keras")  # They make a plan.
# Largest step, in ops, of which further variants are extracted for comparison
# only, because larger steps take long; our choice.
_MOST_COMPARED_OPS = 4_000
# Speedup over one device from which microbatches are not suggested if all
# devices work. Models of consecutive layers reach 1.3 to 1.6 on four.
_ENOUGH_GAIN = 1.6


def make_plan(
  steps: Steps, config: PlanConfig, show: Stages | None = None
) -> Plan:
  """Plans the step of a model.

  Raises:
    InfeasibleError: no placement fits in memory.
    ExtractionError: the step cannot be extracted, or the requested microbatches
      change its result.
    MeasurementError: `config.measure` is set, and no placement could be run.
  """
  stage = Stages() if show is None else show
  if config.dask is not None and config.workers is None:
    with contextlib.ExitStack() as stack:
      with stage("starting", f" workers by Dask ({config.dask})"):
        opened = opened_workers(config.dask, config.strategy)
        workers = stack.enter_context(opened)
      return make_plan(
        steps, dataclasses.replace(config, workers=workers), stage
      )
  # Phase 1: choose the step variant and the placement.
  unchecked, chosen = "", config
  outcome = choose_variant(steps, config, stage)
  # Phase 2: check that microbatches do not change the result.
  variant = _variant_of(outcome, config)
  if config.check and not variant.is_whole and outcome.step is not None:
    try:
      unchecked = steps.compare(outcome.step, variant, stage)
    except ExtractionError as error:
      if not config.chooses_microbatches:
        raise
      unchecked = f"the step is left whole: {error}"
      whole = config.variant.with_count(1)
      chosen = dataclasses.replace(
        config, variant=whole, chooses_microbatches=False
      )
      outcome = choose_variant(steps, chosen, stage)
  # Phase 3: find what to compare with.
  outcome = _with_alternatives(steps, outcome, config, stage)
  plan = _plan(steps, outcome, chosen)
  notes = (
    *_notes(plan, outcome),
    *(_unasked(outcome, config), _hint(steps, outcome, config), unchecked),
  )
  return dataclasses.replace(
    plan,
    notes=tuple(_sentence(note) for note in notes if note),
    seconds=stage.seconds,
  )


def _with_alternatives(
  steps: Steps, outcome: Outcome, config: PlanConfig, show: Stages
) -> Outcome:
  """Adds variants on one device that may be the fairer reference.

  These are the whole step if microbatches were requested, and otherwise the
  first number of microbatches that one device holds, if it does not hold the
  whole step. Large steps take long to extract; they and measured ones are left
  out.
  """
  reference, problem = outcome.reference, outcome.problem
  is_measured = problem.graph.extra.get("costs") == "measured"
  if is_measured or problem.graph.num_ops > _MOST_COMPARED_OPS:
    return outcome
  counts: list[int] = []
  if not config.variant.is_whole and not config.chooses_variant:
    counts = [1]
  elif steps.suggests_microbatches and (
    reference is None or is_on_cpus(reference)
  ):
    held = float(problem.graph.persistent_bytes.sum())
    is_cpu, memory = problem.cluster.is_cpu, problem.cluster.memory_bytes
    if (memory[~is_cpu | is_cpu.all()] > held).any():
      tried = [] if outcome.choice is None else outcome.choice.trials
      known = {t.variant.count for t in tried if t.variant.max_in_flight == 1}
      counts = [count for count in (2, 4, 8, 16) if count not in known]
  for count in counts:
    variant = config.variant.with_count(count, 1 if count > 1 else None)
    what = f" of one device with the step {in_words(variant)}"
    try:
      with show("estimate", what):
        other = steps.open(variant, show).problem
        result = on_one_device(other, config.seed)
    except TfplaceError:
      break
    if result is not None and not is_on_cpus(result):
      return dataclasses.replace(outcome, alternatives=(result,))
  return outcome


def _hint(steps: Steps, outcome: Outcome, config: PlanConfig) -> str:
  """Suggests microbatches if several devices gain little or some are idle."""
  variant = _variant_of(outcome, config)
  is_open = variant == WHOLE and not config.chooses_microbatches
  is_open = is_open and steps.suggests_microbatches
  if not is_open or config.strategy != AUTO:
    return ""
  single, best = outcome.reference, outcome.best
  gains = single is None or (
    single.evaluation.step_time_us
    >= _ENOUGH_GAIN * best.evaluation.step_time_us
  )
  if num_working_devices(outcome.problem) == 1 or (
    gains and not idle_reason(best.placement)
  ):
    return ""
  text = f"planning with microbatches={AUTO!r} may keep more devices busy"
  if any(name.endswith("moving_mean") for name in outcome.problem.graph.names):
    text += (
      ", with allow_batch_statistics=True, by which each microbatch of"
      " BatchNormalization uses its own statistics, and losses change slightly"
    )
  return text


def _notes(plan: Plan, outcome: Outcome) -> Iterator[str]:
  """Yields what to know about a plan, most important first."""
  yield (
    f"{plan.costs} op times, searched by {plan.strategy}"
    if outcome.measured is None
    else f"steps were measured on the devices, searched by {plan.strategy}"
  )
  if plan.placement is None or plan.schedule is None:
    return
  yield printer().held_back(plan.schedule)
  yield "" if plan.evaluation is None else comparison_in_words(plan.evaluation)
  yield "" if outcome.choice is None else outcome.choice.reason
  yield _variables_on_host(plan.placement)
  yield cpu_note(outcome.best)
  yield idle_reason(plan.placement)
  yield outcome.order_reason


def _unasked(outcome: Outcome, config: PlanConfig) -> str:
  """Says why `auto` asked no policy although the user gave one."""
  auto = outcome.results[0]
  if config.policy is None or any(r.strategy in LEARNED for r in auto.tried):
    return ""
  reasons = [why for name, why in auto.skipped.items() if name in LEARNED]
  return f"the policy was not asked: {reasons[0]}" if reasons else ""


def _variables_on_host(placement: Placement) -> str:
  problem = placement.problem
  on_host = problem.cluster.is_cpu[placement.devices]
  held = problem.graph.persistent_bytes[on_host]
  if on_host.all() or not held.any():
    return ""
  count = np.count_nonzero(held)
  what = "variable is" if count == 1 else "variables are"
  return f"{count} {what} in host memory ({format_bytes(float(held.sum()))})"


def _sentence(text: str) -> str:
  return f"{text[0].upper()}{text[1:]}."


def _variant_of(outcome: Outcome, config: PlanConfig) -> VariantConfig:
  """Returns the placed step variant, with the ops that it recomputes."""
  choice = outcome.choice
  variant = config.variant if choice is None else choice.variant
  named = microbatches_of(outcome.problem.graph.traced_names)
  return dataclasses.replace(
    variant, recompute=named.recompute, devices=named.devices
  )


def _plan(steps: Steps, outcome: Outcome, config: PlanConfig) -> Plan:
  """Describes the selected placement.

  Strategy "auto" selects one device if nothing is faster. The placement of a
  strategy given by name is always selected.
  """
  result, single = outcome.best, outcome.single_device
  is_auto = config.strategy == AUTO
  beaten = (
    is_auto
    and single is not None
    and outcome.evaluation_of(result).step_time_us
    >= outcome.evaluation_of(single).step_time_us
  )
  one_device = beaten or len(set(result.placement.devices.tolist())) == 1
  is_chosen = outcome.choice is not None and not outcome.choice.is_first
  if one_device and single is not None and is_auto and not is_chosen:
    result = single
  graph, reference = outcome.problem.graph, outcome.reference
  is_measured = graph.extra.get("costs") == "measured"
  traced = None if outcome.step is None else outcome.step.traced
  plan = Plan(
    graph.name if traced is None else traced.name,
    result.strategy,
    variant=_variant_of(outcome, config),
    training=graph.extra.get("training", steps.training) is True,
    batch_size=0 if traced is None else traced.batch_size,
    one_device=one_device,
    evaluation=outcome.evaluation_of(result),
    single_device=None
    if reference is None
    else outcome.evaluation_of(reference),
    costs="measured" if is_measured else "estimated",
    versions=versions(_PACKAGES),
    # The step may hold a copy of the weights.
    outcome=dataclasses.replace(outcome, step=None),
    step=None if traced is None else traced.without_values(),
  )
  return plan.with_placement(result.placement)
