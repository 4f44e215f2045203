"""tfplace-place: proposes a placement and compares it with the baselines."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from tfplace import core, formats, placers
from tfplace.bin import cli, guarded, outputs, sources
from tfplace.core import constraints
from tfplace.core.protocols import Result
from tfplace.placers import registry
from tfplace.plan.planner import PlanConfig, PlanResult, Stages, make_plan

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
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
  with sources.opened_cluster(values) as (described, live):
    cluster = _limited(values, described)
    needs_trace = live is not None or outputs.needs_trace(values)
    source = sources.load_source(values, cluster, needs_trace)
    graph = _grouped(values, source.graph)
    problem = core.Problem(graph, cluster)
    if live is not None and source.traced is not None:
      problem = _calibrated(values, live, problem, source.traced)
    plan = _plan(values, problem)
    results, best = plan.results, plan.best
    measured = None
    if values.measure and live is not None:
      measured = _measure(values, live, plan.problem, source, results)
      best = _fastest(results, measured)
  outputs.write_files(values, best.placement, source)
  outputs.write_pictures(values, best.placement, results)
  outputs.print_results(results, best, measured)
  if measured is None:
    _tell_if_beaten(best, results)
  for strategy, why in plan.best.skipped.items():
    print(f"{strategy} was skipped: {why}")
  if values.json:
    _print_json(best, results, measured)


def _calibrated(
  values: flags.FlagValues,
  live: "OpenCluster",
  problem: core.Problem,
  traced: "TracedStep",
) -> core.Problem:
  """The problem with op times and overheads measured on the live devices."""
  with cli.showing_progress(f"Profiling {problem.graph.name}"):
    return live.profiled(
      problem, traced, allow_side_effects=values.allow_side_effects
    )


def _plan(values: flags.FlagValues, problem: core.Problem) -> PlanResult:
  if values.strategy in ("auto", *placers.LEARNED):
    cli.load_tensorflow()  # for the learned policy; quiet, off the clock
  init_placement = None
  if values.init_placement:
    init_placement = formats.load_placement(values.init_placement, problem)
  config = PlanConfig(
    values.strategy,
    values.budget_s,
    values.seed,
    values.policy,
    _BASELINES,
    init_placement,
  )
  plan = make_plan(problem, config, Stages(cli.show_stage))
  for strategy, error in plan.failures.items():
    print(f"{strategy}: {error}")
  return plan


def _measure(
  values: flags.FlagValues,
  live: "OpenCluster",
  problem: core.Problem,
  source: sources.Source,
  results: Sequence[Result],
) -> list[core.Evaluation]:
  with cli.showing_progress(f"Measuring {len(results)} placements"):
    if source.traced is None:
      raise cli.UsageError("nothing to run")  # `_check` saw to it
    harness = live.harness(
      problem, source.traced, allow_side_effects=values.allow_side_effects
    )
    return harness.evaluate([result.placement for result in results])


def _fastest(
  results: Sequence[Result], evaluations: Sequence[core.Evaluation]
) -> Result:
  """Of all that `auto` had to choose from, what takes the shortest step.

  Any other strategy has no choice, and the baselines are only compared with.
  """
  fit = [i for i, evaluation in enumerate(evaluations) if evaluation.feasible]
  if not fit or not results[0].tried:
    return results[0]
  return results[min(fit, key=lambda i: evaluations[i].step_time_us)]


def _tell_if_beaten(best: Result, results: Sequence[Result]) -> None:
  """Says it where dividing the step gains nothing."""
  for result in results:
    alone_us = result.evaluation.step_time_us
    if result.strategy == "single" and result.evaluation.feasible:
      if alone_us <= best.evaluation.step_time_us:
        print("No placement that was found beats one device.")
      return


def _print_json(
  best: Result,
  results: list[Result],
  measured: Sequence[core.Evaluation] | None,
) -> None:
  evaluation = best.evaluation
  if measured is not None:
    evaluation = measured[results.index(best)].with_extra(
      predicted_step_time_us=evaluation.step_time_us
    )
  outputs.print_evaluation(
    evaluation.with_extra(
      strategy=best.strategy,
      seconds=best.seconds,
      evaluations=best.evaluations,
    )
  )


def run(argv: Sequence[str] | None = None) -> int:
  """The console script; returns its exit code."""
  name = "tfplace-place"
  return guarded.run(
    name,
    lambda: cli.run_command(name, _DESCRIPTION, _define, _main, argv),
    argv,
  )


if __name__ == "__main__":
  sys.exit(run())
