"""tfplace-place: proposes a placement and compares it with the baselines."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from tfplace import core, formats, placers
from tfplace.bin import cli, guarded, outputs, sources, splits
from tfplace.core import colocation
from tfplace.core.cluster import with_max_memory
from tfplace.core.order import ARRIVAL, AUTO, ORDERS, order_to_json
from tfplace.extraction.microbatches import SplitConfig, split_of
from tfplace.placers import registry
from tfplace.plan import sources as plan_sources
from tfplace.plan.choice import SplitChoice
from tfplace.plan.clusters import LiveStep
from tfplace.plan.measured import make_measured_auto_plan, make_measured_plan
from tfplace.plan.microbatches import make_auto_plan, split_hint
from tfplace.plan.planner import (
  CHOOSING,
  SINGLE,
  PlanConfig,
  PlanResult,
  Stages,
  against_single,
  is_beaten,
  make_plan,
)
from tfplace.plan.race import SplitStep

if TYPE_CHECKING:
  from tfplace.measure import OpenCluster

_DESCRIPTION = (
  "Finds a device for every op of a model's step, prints the predicted (with"
  " --measure also the measured) step time beside the baselines, and writes"
  " the placement and the rewritten graph."
)
_BASELINES = ("single", "cpu", "expert")


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values)
  define_strategy_flags(values)
  flags.DEFINE_string(
    "init_placement",
    None,
    "tfplace.placement.v1 file to start the search from (strategies auto and"
    " annealing), such as the plan before a device was lost: of another graph"
    " or cluster, what is still there is kept.",
    flag_values=values,
  )
  flags.DEFINE_enum(
    "order",
    ARRIVAL,
    (*ORDERS, AUTO),
    "In which each device takes its ready ops: as they become ready, or by a"
    " rank of each op (one microbatch after another, the longest way to the end"
    " first), which the graph that is written keeps to by control edges. auto"
    " tries both, and takes rank where it gains at least 3% or fits where"
    " arrival does not.",
    flag_values=values,
  )
  flags.DEFINE_float(
    "tolerance",
    None,
    "Share of the step time that --strategy=auto may give up for less traffic."
    " Left out, it gives up nothing by described costs, and by measured ones"
    " what the measurement is unsure by.",
    lower_bound=0.0,
    flag_values=values,
  )
  _define_constraint_flags(values)
  outputs.define_file_flags(values)
  flags.DEFINE_bool(
    "measure",
    False,
    "Also run the placements on the real devices of --cluster.",
    flag_values=values,
  )
  sources.define_measure_s_flag(values)
  flags.DEFINE_bool(
    "json", False, "Print the evaluation as a last line.", flag_values=values
  )
  outputs.define_picture_flags(values)


def define_strategy_flags(values: flags.FlagValues) -> None:
  """Adds `--strategy`, `--budget_s`, `--seed` and `--policy`."""
  flags.DEFINE_enum(
    "strategy",
    "auto",
    sorted(placers.STRATEGIES),
    "The placer.",
    flag_values=values,
  )
  flags.DEFINE_float(
    "budget_s",
    60.0,
    "Seconds to search, a quarter of them at most to prove how fast a step can"
    " be at best. Extracting, and compiling once per installation, come first.",
    lower_bound=0.0,
    flag_values=values,
  )
  flags.DEFINE_integer(
    "seed", 0, "Fixes every random choice.", lower_bound=0, flag_values=values
  )
  flags.DEFINE_string(
    "policy",
    None,
    "Exported policy of a learned strategy; the shipped one where left out.",
    flag_values=values,
  )


def _define_constraint_flags(values: flags.FlagValues) -> None:
  """Adds `--max_memory` and `--keep_together`."""
  flags.DEFINE_list(
    "max_memory",
    [],
    "Memory that devices may fill, in place of what --cluster says, such as"
    " GPU:0=10GiB,GPU:1=8GiB.",
    flag_values=values,
  )
  flags.DEFINE_list(
    "keep_together",
    [],
    "Patterns of op names such as encoder/* or */lstm_1/*: the ops that are"
    " like one of them share a device.",
    flag_values=values,
  )


def _limited(values: flags.FlagValues, cluster: core.Cluster) -> core.Cluster:
  """The cluster with the memory of `--max_memory`.

  Raises:
    UsageError: an item that is not device=size, or a device that is named
      twice.
    FormatError: no such device, no size, or two names of one device.
  """
  sizes: dict[str, str] = {}
  for item in values.max_memory:
    device, equals, size = item.rpartition("=")
    if not equals:
      raise cli.UsageError(
        f"--max_memory: {item!r} is not of the form GPU:0=8GiB"
      )
    if device in sizes:
      raise cli.UsageError(
        f"--max_memory gives {device!r} two sizes, {sizes[device]!r} and"
        f" {size!r}; give it one"
      )
    sizes[device] = size
  return with_max_memory(cluster, sizes)


def _grouped(values: flags.FlagValues, graph: core.OpGraph) -> core.OpGraph:
  """The graph with the groups of `--keep_together`.

  Raises:
    FormatError: a pattern that no op's name is like.
  """
  if not values.keep_together:
    return graph
  patterns = values.keep_together
  groups = [colocation.matching(graph, pattern) for pattern in patterns]
  return colocation.keep_together(graph, groups)


def _check(values: flags.FlagValues) -> None:
  """Refuses what cannot work before anything is computed."""
  outputs.check_files(values)
  outputs.check_pictures(values)
  if values.init_placement:
    registry.check_accepts_start(values.strategy)
    if splits.is_chosen(values):
      raise cli.UsageError(
        "--init_placement is of one split of the step: give its number of"
        " microbatches instead of --microbatches=auto"
      )
  if values["tolerance"].present and values.strategy != CHOOSING:
    raise cli.UsageError(
      f"strategy {values.strategy!r} gives up no time for less traffic, yet"
      f" --tolerance={values.tolerance:g} was given; {CHOOSING} may"
    )
  kind = sources.chosen_source(values, may_choose=True)
  cluster = cli.required(values, "cluster")
  if values.measure_s and not sources.is_live(cluster):
    raise cli.UsageError(
      f"--measure_s={values.measure_s:g} bounds steps on real devices, and"
      f" {cluster!r} has none: leave it out"
    )
  if not values.measure:
    return
  if kind == "graph":
    raise cli.UsageError("--measure needs a TensorFlow model, not --graph")
  if not sources.is_live(cluster):
    raise cli.UsageError(
      "--measure needs real devices (workers:N, gpus or a tfplace.hosts.v1"
      f" file), not {cluster!r}"
    )


def _main(values: flags.FlagValues) -> None:
  _check(values)
  with sources.opened_cluster(values) as (described, devices):
    cluster = _limited(values, described)
    opened = _Opened(values, cluster, devices, Stages(cli.show_stage))
    if splits.is_chosen(values):
      plan, step = _auto(opened)
    else:
      plan, step = _whole(opened)
    hint = _hint(opened, plan)
  outputs.write_files(values, plan.best.placement, step.traced)
  outputs.write_pictures(values, plan.best.placement, plan.results)
  _print(values, plan, hint)


# Steps that share the seconds of running where the split is chosen: at most as
# many as are profiled, and two that run.
_RUNNING_STEPS = 4


@dataclasses.dataclass(frozen=True)
class _Opened:
  """The source and the cluster of the flags: steps, split in any way."""

  values: flags.FlagValues
  cluster: core.Cluster
  devices: "OpenCluster | None"
  show: Stages

  def step(self, split: SplitConfig) -> SplitStep:
    """The step with its costs: profiled, where devices are open.

    Raises:
      TfplaceError: a bad source, a step that cannot be split so, or be run.
    """
    values = self.values
    needs_trace = self.devices is not None or outputs.needs_trace(values)
    source = sources.load_source(values, self.cluster, needs_trace, split)
    problem = core.Problem(_grouped(values, source.graph), self.cluster)
    if values.strategy in ("auto", *placers.LEARNED):
      cli.load_tensorflow()  # for the learned policy; quiet, off the clock
    if self.devices is None or source.traced is None:
      return SplitStep(problem, source.traced)
    options = {"allow_side_effects": values.allow_side_effects}
    live = LiveStep(
      self.devices, source.traced, options, values.measure_s or math.inf
    )
    if splits.is_chosen(values):
      live = live.shared(_RUNNING_STEPS)
    with self.show("profiling", f" {problem.graph.name}") as on_stage:
      problem = live.profiled(problem, on_stage)
    return SplitStep(problem, source.traced, live)


def _auto(opened: _Opened) -> tuple[PlanResult, SplitStep]:
  """Chooses the split with the placement."""
  values = opened.values
  base, config = splits.config(values), _config(values)
  if values.measure:
    return make_measured_auto_plan(opened.step, base, config, opened.show)
  return make_auto_plan(opened.step, base, config, opened.show)


def _whole(opened: _Opened) -> tuple[PlanResult, SplitStep]:
  """Places the step as it is split by the flags."""
  values = opened.values
  step = opened.step(splits.config(values))
  config = _config(values)
  if values.measure and step.live is not None:
    plan = make_measured_plan(step.problem, config, step.live, show=opened.show)
  else:
    plan = make_plan(step.problem, config, opened.show)
  return plan, step


def _hint(opened: _Opened, plan: PlanResult) -> str:
  """What a split would give, where none is asked for and no devices run."""
  values = opened.values
  asked = splits.is_chosen(values) or not splits.config(values).is_whole
  kind = sources.chosen_source(values, may_choose=True)
  if asked or opened.devices is not None or not values.training:
    return ""
  if kind not in plan_sources.SPLIT_KINDS:
    return ""
  return split_hint(opened.step, plan, _config(values), opened.show)


def _config(values: flags.FlagValues) -> PlanConfig:
  init_placement = None
  if values.init_placement:
    init_placement = formats.load_assignments(values.init_placement)
  return PlanConfig(
    values.strategy,
    values.budget_s,
    values.seed,
    values.policy,
    _BASELINES,
    init_placement,
    tolerance=values.tolerance,
    order=values.order,
  )


def _print(values: flags.FlagValues, plan: PlanResult, hint: str) -> None:
  for strategy, error in plan.failures.items():
    print(f"{strategy}: {error}")
  best, single = plan.best, plan.single_device
  if plan.choice is not None:
    outputs.print_choice(plan.choice, single)
  outputs.print_results(plan.results, best, plan.measured, single)
  if plan.measured is None and single is not None and is_beaten(best, single):
    if values.strategy == CHOOSING:
      print("No placement that was found beats one device.")
    elif best.strategy != SINGLE:
      print(f"The step by {best.strategy} is {against_single(best, single)}.")
  split_reason = plan.choice.reason if plan.choice else ""
  for text in (split_reason, plan.order_reason, hint):
    if text:
      print(f"{text[0].upper()}{text[1:]}.")
  for strategy, why in plan.results[0].skipped.items():
    print(f"{strategy} was skipped: {why}")
  if values.json:
    split = split_of(plan.problem.graph.names)
    tried = {} if plan.choice is None else {"splits": _as_json(plan.choice)}
    outputs.print_evaluation(
      plan.evaluation.with_extra(
        strategy=best.strategy,
        seconds=best.seconds,
        evaluations=best.evaluations,
        microbatches=split.microbatches,
        max_in_flight=split.max_in_flight,
        **tried,
      )
    )


def _as_json(choice: SplitChoice) -> list[dict[str, Any]]:
  """What was tried, each with its best step; none where nothing fits."""
  return [
    {
      "microbatches": trial.split.microbatches,
      "max_in_flight": trial.split.max_in_flight,
      **order_to_json(trial.order or ARRIVAL),
      "step_time_us": None if trial.best is None else trial.step_time_us,
      "seconds": trial.seconds,
    }
    for trial in choice.trials
  ]


def run(argv: Sequence[str] | None = None) -> int:
  """The console script; returns its exit code."""
  return guarded.run_command(
    "tfplace-place", _DESCRIPTION, _define, _main, argv
  )


if __name__ == "__main__":
  sys.exit(run())
