"""tfplace-estimate: estimates a step without a search.

Shows parameters, memory at its peak by part and layer, step time and share of
the peak on one device of every GPU preset or of --cluster, and the fewest
devices that hold it, whole and in microbatches. --largest_batch finds the
largest batch that fits on --cluster.
"""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from absl import flags

from tfplace import formats
from tfplace.bin import cli, model_flags, outputs, sources
from tfplace.formats.results import estimate_to_json
from tfplace.graph import Placement
from tfplace.graph.estimate import Estimate
from tfplace.graph.progress import Progress
from tfplace.plan import estimate as estimates
from tfplace.plan.config import check_costs
from tfplace.plan.estimate.cards import Traces, cluster_card
from tfplace.report import page
from tfplace.report.table import estimate_tables

if TYPE_CHECKING:
  from tfplace.plan.estimate.cards import Card
  from tfplace.plan.source import ModelSource


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values)
  text = (
    "Dtype policies in which a Keras or zoo model is rebuilt and estimated:"
    f" {', '.join(estimates.PRECISIONS)}. Default: the model's own."
  )
  cli.define(values, "precision", text, [])
  text = "Also find the largest batch that fits on --cluster."
  cli.define(values, "largest_batch", text, False)
  cli.define_all(
    values,
    {
      "output": "tfplace.estimate.v1 file to write.",
      "report": "Report to write: one .html file with memory over the step on"
      " one device of --cluster, or without it of the smallest preset that"
      " holds the step. Requires the extra 'report'.",
    },
  )
  cli.define_json(values, "estimate")


def _check(values: flags.FlagValues) -> str:
  """Checks the flags before anything is computed; returns the source flag."""
  kind = sources.chosen_source(values)
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
  check_costs(values.costs)
  cli.check_writable(values.output)
  outputs.check_report(values)
  return kind


def _main(values: flags.FlagValues) -> None:
  kind = _check(values)
  rows = estimates.cards_of(values.cluster)
  source = sources.open_source(values, kind)
  with (
    model_flags.imported(values),
    cli.showing_progress(f"Estimating {source.name}") as on_stage,
  ):
    on_stage("starting TensorFlow")
    cli.load_tensorflow()
    source = source.loaded(on_stage)
    estimate = _estimate(values, source, rows, on_stage)
    if values.report:
      on_stage("writing the report")
      drawn = _drawn(values, source, rows, estimate=estimate, on_stage=on_stage)
      page.save_report(drawn, values.report)
  if values.output:
    formats.save_estimate(estimate, values.output)
  screen = cli.open_console()
  for part in estimate_tables(estimate):
    screen.print(part)
  if values.json:
    print(json.dumps(estimate_to_json(estimate)))


def _estimate(
  values: flags.FlagValues,
  source: "ModelSource",
  rows: "list[Card]",
  on_stage: Progress,
) -> Estimate:
  config = sources.request(values)
  result = estimates.estimate_steps(
    source,
    rows,
    config,
    precisions=values.precision or None,
    on_stage=on_stage,
  )
  if not values.largest_batch:
    return result
  largest = estimates.find_largest_batch(
    Traces(source, config, _precision(values), on_stage),
    cluster_card(rows[0].cluster),
    max(1, result.batch_size),
  )
  return dataclasses.replace(result, largest_batch=largest)


def _drawn(
  values: flags.FlagValues,
  source: "ModelSource",
  rows: "list[Card]",
  *,
  estimate: Estimate,
  on_stage: Progress,
) -> Placement:
  """Returns the placement on one device whose report is drawn."""
  _, card = min(
    zip(estimate.steps[0].cards, rows, strict=True),
    key=lambda pair: (not pair[0].fits, pair[0].memory_bytes),
  )
  config, precision = sources.request(values), _precision(values)
  traces = Traces(source, config, precision, on_stage)
  return estimates.one_device_placement(traces, card)


def _precision(values: flags.FlagValues) -> str | None:
  return values.precision[0] if values.precision else None


run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
