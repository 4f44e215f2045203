"""tfplace-place: finds a device for every op of a model's step.

Prints its predicted step time (with --measure also the measured one) beside the
baselines, and writes the placement and the placed graph.
"""

import dataclasses
import functools
import math
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from tfplace import formats, placers
from tfplace.bin import cli, microbatch_flags, outputs, sources, tasks
from tfplace.graph import Cluster, OpGraph, Problem, graph_edits
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.cluster import with_max_memory
from tfplace.graph.microbatches import VariantConfig, microbatches_of
from tfplace.graph.order import ARRIVAL, ORDERS, order_to_json
from tfplace.plan.config import PlanConfig
from tfplace.plan.live_step import guesses
from tfplace.plan.plan import Plan
from tfplace.plan.planner import make_plan
from tfplace.plan.search import Outcome
from tfplace.plan.stages import Stages
from tfplace.plan.variants import StepVariant, VariantChoice
from tfplace.report.table import choice_table, results_table

if TYPE_CHECKING:
  from tfplace.measure.cluster import OpenCluster

_BASELINES = ("single", "cpu", "expert")


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values)
  _define_strategy_flags(values)
  cli.define_all(
    values,
    {
      "init_placement": "tfplace.placement.v1 file from which the search starts"
      " (strategies auto, annealing and ordered), for example the plan before a"
      " device was lost. If graph or cluster have changed, ops and devices that"
      " still exist are kept.",
    },
  )
  text = (
    "Order in which a device runs its ready ops. arrival: as they become ready."
    " rank: by microbatch, then by longest remaining path; control edges"
    " enforce it in the written graph. auto: of a microbatched step rank, if it"
    " gains at least 3% or if only rank fits in memory, and else arrival."
  )
  choices = (*ORDERS, AUTO)
  cli.define(values, "order", text, AUTO, choices=choices)
  text = (
    "Share of the step time that --strategy=auto may give up for less traffic."
    " Default: the noise of measured costs, and 0 for described costs."
  )
  cli.define(values, "traffic_tolerance", text, kind=float, least=0.0)
  cli.define_all(
    values,
    {
      "max_memory": "Memory limits of devices, such as"
      " GPU:0=10GiB,GPU:1=8GiB. They replace those of --cluster.",
      "keep_together": "Patterns of op names such as encoder/* or */lstm_1/*."
      " The ops that match one pattern share a device.",
    },
    [],
  )
  cli.define_all(values, outputs.FILES)
  text = "Also measure placements on the real devices of --cluster."
  cli.define(values, "measure", text, False)
  sources.define_measure_s_flag(values)
  sources.define_dask_flag(
    values, "search with one seed each; the best placement wins"
  )
  cli.define_json(values, "evaluation")
  outputs.define_picture_flags(values)


def _define_strategy_flags(values: flags.FlagValues) -> None:
  choices = sorted(placers.STRATEGIES)
  cli.define(values, "strategy", "Placer to use.", AUTO, choices=choices)
  text = (
    "Time limit of the search in seconds. At most a quarter of it goes to the"
    " proof of a lower bound. Extraction and the compilation once per"
    " installation do not count."
  )
  cli.define(values, "budget_s", text, 60.0, least=0.0)
  text = (
    "Placements that a search simulates, on all devices and on each part that"
    " may be faster, in place of --budget_s, which then limits the proof only."
    " With --gap=0, a seed gives the same result on all machines."
  )
  cli.define(values, "max_evaluations", text, kind=int, least=1)
  text = (
    "The search ends early once the step takes at most this share more than its"
    " proven lower bound, or, on small graphs, once a third of the budget"
    " gained nothing. 0 uses the whole budget."
  )
  cli.define(values, "gap", text, 0.02, least=0.0)
  cli.define(values, "seed", "Seed of all random choices.", 0, least=0)
  text = "Exported policy of a learned strategy. Default: the shipped policy."
  cli.define(values, "policy", text)


def _limited(values: flags.FlagValues, cluster: Cluster) -> Cluster:
  """Returns the cluster with the memory limits of `--max_memory`.

  Raises:
    UsageError: an item is not of the form device=size, or a device is repeated.
    FormatError: a device does not exist, has two names, or has an invalid size.
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


def _grouped(values: flags.FlagValues, graph: OpGraph) -> OpGraph:
  """Returns the graph with the groups of `--keep_together`.

  Raises:
    FormatError: a pattern matches no op.
  """
  if not values.keep_together:
    return graph
  patterns = values.keep_together
  groups = [graph_edits.matching(graph, pattern) for pattern in patterns]
  return graph_edits.keep_together(graph, groups)


def _check(values: flags.FlagValues) -> str:
  """Checks the flags before anything is computed; returns the source flag."""
  cli.check_writable(values)
  outputs.check_files(values)
  outputs.check_pictures(values)
  chosen = microbatch_flags.chosen(values)
  if values.init_placement and chosen:
    raise cli.UsageError(
      f"--init_placement is of a step that is known: give its own values"
      f" instead of {' and '.join(chosen)}"
    )
  if (values.traffic_tolerance or 0.0) > 1:
    raise cli.UsageError(
      f"--traffic_tolerance={values.traffic_tolerance:g} is a share of the step"
      " time: 0.05 gives up 5%"
    )
  if values["traffic_tolerance"].present and values.strategy != AUTO:
    raise cli.UsageError(
      f"--traffic_tolerance={values.traffic_tolerance:g} is for"
      f" --strategy={AUTO}; strategy {values.strategy!r} gives up no time for"
      " less traffic"
    )
  kind = sources.chosen_source(values, may_choose=True)
  cluster = cli.required(values, "cluster")
  if values.measure_s and not sources.is_live(cluster):
    raise cli.UsageError(
      f"--measure_s={values.measure_s:g} limits steps on real devices, and"
      f" {cluster!r} has none: leave it out"
    )
  if values.measure and kind == "graph":
    raise cli.UsageError("--measure needs a TensorFlow model, not --graph")
  if values.measure and not sources.is_live(cluster):
    raise cli.UsageError(
      "--measure needs real devices (workers:N, gpus, a tfplace.hosts.v1"
      f" file, tf_config or slurm), not {cluster!r}"
    )
  return kind


def _place(values: flags.FlagValues) -> None:
  kind, config = _check(values), _config(values)
  with sources.opened_cluster(values) as (described, devices):
    steps = _PlacedSteps(
      sources.open_source(values, kind),
      _limited(values, described),
      config,
      sources.graph_cache_of(values),
      values=values,
      devices=devices,
    )
    plan = make_plan(steps, config, Stages(cli.show_stage))
  report = plan.outcome
  assert report is not None  # `make_plan` has searched.
  outputs.write_files(values, report.best.placement, plan.step)
  outputs.write_pictures(values, report.best.placement, report.results)
  _print(values, plan, report)


# Number of step variants that share the measuring time if microbatches are
# chosen: those that are profiled, and two that run.
_RUNNING_STEPS = 4


@dataclasses.dataclass(eq=False, kw_only=True)
class _PlacedSteps(sources.FlagSteps):
  """Step variants of the flags on a cluster whose devices may run."""

  devices: "OpenCluster | None"

  @property
  def suggests_microbatches(self) -> bool:
    """Returns whether microbatches are possible; never on running devices."""
    return self.devices is None and super().suggests_microbatches

  def open(self, variant: VariantConfig, show: Stages) -> StepVariant:
    """Extracts a step variant, and profiles it if devices are open.

    Raises:
      TfplaceError: the source is invalid, or the step cannot be extracted or
        run in these microbatches.
    """
    values = self.values
    needs_trace = self.devices is not None or bool(values.output_graph_def)
    with show.timed("extraction"):
      graph, traced = self.graph(variant, needs_trace)
    problem = Problem(_grouped(values, graph), self.cluster)
    if values.strategy in ("auto", *placers.LEARNED):
      cli.load_tensorflow()  # For the learned policy, outside the budget.
    if self.devices is None or traced is None:
      return StepVariant(problem, traced)
    live = self.devices.step(
      traced,
      measure_s=values.measure_s or math.inf,
      allow_side_effects=values.allow_side_effects,
    )
    if microbatch_flags.chosen(values):
      live = live.shared(_RUNNING_STEPS)
    with show("profiling", f" {problem.graph.name}") as on_stage:
      problem = live.profiled(problem, guesses, on_stage)
    return StepVariant(problem, traced, live)


def _config(values: flags.FlagValues) -> PlanConfig:
  init_placement = None
  if values.init_placement:
    init_placement = formats.load_assignments(values.init_placement)
  return sources.request(
    values,
    strategy=values.strategy,
    budget_s=values.budget_s,
    max_evaluations=values.max_evaluations,
    gap=values.gap,
    seed=values.seed,
    policy=values.policy,
    baselines=_BASELINES,
    init_placement=init_placement,
    tolerance=values.traffic_tolerance,
    order=values.order,
    chooses_microbatches=values.microbatches == AUTO,
    chooses_recomputation=values.recompute == [AUTO],
    measure=values.measure,
    dask=values.dask,
  )


def _print(values: flags.FlagValues, plan: Plan, report: Outcome) -> None:
  for strategy, error in report.failures.items():
    print(f"{strategy}: {error}")
  best, single = report.best, report.reference
  if report.choice is not None:
    table = choice_table(report.choice, single)
    cli.open_console().print(table.to_rich())
  cli.open_console().print(
    results_table(
      report.results, best=best, measured=report.measured, single=single
    ).to_rich()
  )
  print(plan)
  if values.json:
    variant = microbatches_of(report.problem.graph.traced_names)
    tried = {}
    if report.choice is not None:
      tried = {"variants": _trials_as_json(report.choice)}
    outputs.print_evaluation(
      report.evaluation.with_extra(
        strategy=best.strategy,
        seconds=best.seconds,
        evaluations=best.evaluations,
        skipped=dict(report.results[0].skipped),
        **_variant_as_json(variant),
        **tried,
      )
    )


def _variant_as_json(variant: VariantConfig) -> dict[str, Any]:
  """Returns the microbatches, and their sizes where these are given."""
  return {
    "microbatches": variant.count,
    "max_in_flight": variant.max_in_flight,
    **({"microbatch_sizes": list(variant.sizes)} if variant.sizes else {}),
  }


def _trials_as_json(choice: VariantChoice) -> list[dict[str, Any]]:
  """Returns the trials with their best step times, None if nothing fits."""
  return [
    {
      **_variant_as_json(trial.variant),
      "recompute": not trial.variant.recompute.is_none,
      **order_to_json(trial.order or ARRIVAL),
      "step_time_us": None if trial.best is None else trial.step_time_us,
      "seconds": trial.seconds,
    }
    for trial in choice.trials
  ]


_main = functools.partial(tasks.run, "tfplace-place", _place)
run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
