"""tfplace-estimate: memory, step time and the devices that a step needs."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from tfplace import core, formats
from tfplace.bin import cli, microbatch_flags, outputs, sources
from tfplace.core.estimate import Estimate
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.core.progress import Progress
from tfplace.formats.estimates import estimate_to_json
from tfplace.plan import estimate as estimates
from tfplace.plan import sources as plan_sources
from tfplace.report import page
from tfplace.report.estimate_tables import estimate_tables

if TYPE_CHECKING:
  from tfplace.plan.estimate.cards import Card
  from tfplace.plan.estimate.steps import StepSource

_DESCRIPTION = (
  "Estimates a step without a search: parameters, memory at its peak by part"
  " and layer, step time and share of the peak on one device of every GPU"
  " preset or of --cluster, and the fewest devices that hold it, whole and in"
  " microbatches. --largest_batch finds the largest batch that fits on"
  " --cluster."
)


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values)
  flags.DEFINE_list(
    "precision",
    [],
    "Dtype policies in which a Keras or zoo model is rebuilt and estimated:"
    f" {', '.join(estimates.PRECISIONS)}. Default: the model's own.",
    flag_values=values,
  )
  flags.DEFINE_bool(
    "largest_batch",
    False,
    "Also find the largest batch that fits on --cluster.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "output", None, "tfplace.estimate.v1 file to write.", flag_values=values
  )
  flags.DEFINE_string(
    "report",
    None,
    "Report to write: one .html file with memory over the step on one device"
    " of --cluster, or without it of the smallest preset that holds the step."
    " Requires the extra 'report'.",
    flag_values=values,
  )
  flags.DEFINE_bool(
    "json",
    False,
    "Print the estimate as JSON in the last line.",
    flag_values=values,
  )


def _check(values: flags.FlagValues) -> str:
  """Checks the flags before anything is computed; returns the source flag."""
  microbatch_flags.check_not_chosen(values)
  kind = sources.chosen_source(values, may_choose=True)
  if kind == "graph":
    raise cli.UsageError(
      f"--graph={values.graph} has costs of one cluster only and no model:"
      " estimate --model, --keras_model, --saved_model or --graph_def, or"
      " simulate the graph with tfplace-place --strategy=single"
    )
  estimates.check_precisions(values.precision)
  if values.largest_batch and not values.cluster:
    raise cli.UsageError(
      "--largest_batch needs the devices that the batch must fit on: give"
      " --cluster"
    )
  if values.cluster and sources.is_live(values.cluster):
    raise cli.UsageError(
      f"--cluster={values.cluster} names running devices; an estimate takes a"
      " preset or a tfplace.cluster.v1 file"
    )
  if values.largest_batch and len(values.precision) > 1:
    raise cli.UsageError(
      f"--largest_batch is found in one precision, and"
      f" --precision={','.join(values.precision)} names"
      f" {len(values.precision)}: give one"
    )
  if values["import"].value and kind != "keras_model":
    raise cli.UsageError("--import is for the classes of --keras_model")
  plan_sources.check_costs(values.costs)
  cli.check_writable(values.output)
  outputs.check_report(values)
  return kind


def _main(values: flags.FlagValues) -> None:
  kind = _check(values)
  rows = estimates.cards_of(values.cluster)
  name = str(values[kind].value)
  with (
    sources.imported(values["import"].value or ()),
    cli.showing_progress(f"Estimating {name}") as on_stage,
  ):
    on_stage("starting TensorFlow")
    cli.load_tensorflow()
    source = estimates.open_steps(
      name,
      kind=kind,
      training=values.training,
      sizes=sources.model_sizes(values),
      sample=sources.given_batch(values, kind),
      allow_side_effects=values.allow_side_effects,
      on_stage=on_stage,
    )
    found = _estimate(values, source, rows, on_stage)
    if values.report:
      on_stage("writing the report")
      drawn = _drawn(values, source, rows, found, on_stage)
      page.save_report(drawn, values.report)
  if values.output:
    formats.save_estimate(found, values.output)
  screen = cli.open_console()
  for part in estimate_tables(found):
    screen.print(part)
  if values.json:
    print(json.dumps(estimate_to_json(found)))


def _microbatches(values: flags.FlagValues) -> MicrobatchConfig:
  """Returns the microbatches of the flags; "auto" is the whole step."""
  config = microbatch_flags.config(values)
  if microbatch_flags.is_chosen(values):
    return dataclasses.replace(config, count=WHOLE.count)
  return config


def _estimate(
  values: flags.FlagValues,
  source: "StepSource",
  rows: "list[Card]",
  on_stage: Progress,
) -> Estimate:
  config = _microbatches(values)
  found = estimates.estimate_steps(
    source,
    rows,
    batch_size=values.batch_size,
    precisions=values.precision or None,
    microbatches=config,
    costs=values.costs,
    on_stage=on_stage,
  )
  if not values.largest_batch:
    return found
  largest = estimates.find_largest_batch(
    source,
    dataclasses.replace(rows[0], name=rows[0].cluster.name, kind=None),
    batch_size=max(1, found.batch_size),
    precision=values.precision[0] if values.precision else None,
    microbatches=config,
    costs=values.costs,
    on_stage=on_stage,
  )
  return dataclasses.replace(found, largest_batch=largest)


def _drawn(
  values: flags.FlagValues,
  source: "StepSource",
  rows: "list[Card]",
  found: Estimate,
  on_stage: Progress,
) -> core.Placement:
  """Returns the placement on one device whose report is drawn."""
  order = sorted(
    range(len(rows)),
    key=lambda i: (
      not found.steps[0].cards[i].fits,
      found.steps[0].cards[i].memory_bytes,
    ),
  )
  card = rows[order[0]]
  traced = source.trace(
    values.batch_size,
    _microbatches(values),
    values.precision[0] if values.precision else None,
    on_stage,
  )
  return estimates.one_device_placement(traced, card, values.costs)


def run(argv: Sequence[str] | None = None) -> int:
  """Runs the console script and returns its exit code."""
  return cli.run_command("tfplace-estimate", _DESCRIPTION, _define, _main, argv)


if __name__ == "__main__":
  sys.exit(run())
