"""tfplace-place: proposes a placement and compares it with the baselines."""

import math
import sys
from collections.abc import Sequence

from absl import flags

from tfplace import core, formats, placers
from tfplace.bin import cli, guarded, outputs, sources
from tfplace.core import constraints
from tfplace.placers import registry
from tfplace.plan.clusters import LiveStep
from tfplace.plan.measured import make_measured_plan
from tfplace.plan.planner import (
  PlanConfig,
  PlanResult,
  Stages,
  is_beaten,
  make_plan,
)

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
    "tfplace.placement.v1 file of the same graph to start the search from"
    " (strategies auto and annealing).",
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
    UsageError: an item that is not device=size.
    FormatError: no such device, or no size.
  """
  sizes = {}
  for item in values.max_memory:
    device, equals, size = item.rpartition("=")
    if not equals:
      raise cli.UsageError(
        f"--max_memory: {item!r} is not of the form GPU:0=8GiB"
      )
    sizes[device] = size
  return constraints.with_max_memory(cluster, sizes)


def _grouped(values: flags.FlagValues, graph: core.OpGraph) -> core.OpGraph:
  """The graph with the groups of `--keep_together`.

  Raises:
    FormatError: a pattern that no op's name is like.
  """
  if not values.keep_together:
    return graph
  patterns = values.keep_together
  groups = [constraints.matching(graph, pattern) for pattern in patterns]
  return constraints.keep_together(graph, groups)


def _check(values: flags.FlagValues) -> None:
  """Refuses what cannot work before anything is computed."""
  outputs.check_files(values)
  outputs.check_pictures(values)
  if values.init_placement:
    registry.check_searches(values.strategy)
  kind = sources.chosen_source(values)
  cluster = cli.required(values, "cluster")
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
    needs_trace = devices is not None or outputs.needs_trace(values)
    source = sources.load_source(values, cluster, needs_trace)
    problem = core.Problem(_grouped(values, source.graph), cluster)
    live = None
    if devices is not None and source.traced is not None:
      options = {"allow_side_effects": values.allow_side_effects}
      live = LiveStep(
        devices, source.traced, options, values.measure_s or math.inf
      )
    if values.strategy in ("auto", *placers.LEARNED):
      cli.load_tensorflow()  # for the learned policy; quiet, off the clock
    stages = Stages(cli.show_stage)
    config = _config(values, problem)
    if values.measure and live is not None:
      plan = make_measured_plan(problem, config, live, show=stages)
    else:
      plan = make_plan(problem, config, stages, live)
  outputs.write_files(values, plan.best.placement, source)
  outputs.write_pictures(values, plan.best.placement, plan.results)
  _print(values, plan)


def _config(values: flags.FlagValues, problem: core.Problem) -> PlanConfig:
  init_placement = None
  if values.init_placement:
    init_placement = formats.load_placement(values.init_placement, problem)
  return PlanConfig(
    values.strategy,
    values.budget_s,
    values.seed,
    values.policy,
    _BASELINES,
    init_placement,
  )


def _print(values: flags.FlagValues, plan: PlanResult) -> None:
  for strategy, error in plan.failures.items():
    print(f"{strategy}: {error}")
  best, single = plan.best, plan.single_device
  outputs.print_results(plan.results, best, plan.measured)
  if plan.measured is None and is_beaten(best, single):
    print("No placement that was found beats one device.")
  for strategy, why in plan.results[0].skipped.items():
    print(f"{strategy} was skipped: {why}")
  if values.json:
    outputs.print_evaluation(
      plan.evaluation.with_extra(
        strategy=best.strategy,
        seconds=best.seconds,
        evaluations=best.evaluations,
      )
    )


def run(argv: Sequence[str] | None = None) -> int:
  """The console script; returns its exit code."""
  return guarded.run_command(
    "tfplace-place", _DESCRIPTION, _define, _main, argv
  )


if __name__ == "__main__":
  sys.exit(run())
