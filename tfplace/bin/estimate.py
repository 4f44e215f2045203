"""tfplace-estimate: estimates a step without a search.

Shows parameters, memory at its peak by part and layer, step time and share of
the peak on one device of every GPU preset or of --cluster, and the fewest
devices that hold it, whole and in microbatches. --largest_batch finds the
largest batch that fits on --cluster.
"""

import dataclasses
import json
import sys

from absl import flags

from tfplace import formats
from tfplace.bin import cli, model_flags, sources
from tfplace.formats.results import estimate_to_json
from tfplace.graph import Placement
from tfplace.graph.estimate import Estimate
from tfplace.plan import estimate as estimates
from tfplace.plan.config import check_costs
from tfplace.plan.estimate.cards import Card, Traces, cluster_card
from tfplace.plan.source import GRAPH
from tfplace.report import page
from tfplace.report.table import estimate_tables


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
  if kind == GRAPH and values.largest_batch:
    raise cli.UsageError(
      "--largest_batch needs a model to trace at other batch sizes, not"
      " --graph, whose costs are of its own"
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
  cli.check_writable(values)
  if values.report:
    page.check_report(values.report)
  return kind


def _main(values: flags.FlagValues) -> None:
  kind = _check(values)
  rows = estimates.cards_of(values.cluster)
  source = sources.open_source(values, kind)
  config = sources.request(values)
  with (
    model_flags.imported(values),
    cli.showing_progress(f"Estimating {source.name}") as on_stage,
  ):
    if kind != GRAPH:
      on_stage("starting TensorFlow")
      cli.load_tensorflow()
    source = source.loaded(on_stage)
    precisions = values.precision or None
    estimate = estimates.estimate_steps(
      source, rows, config, precisions=precisions, on_stage=on_stage
    )
    first = precisions[0] if precisions else None
    traces = Traces(source, config, first, on_stage)
    if values.largest_batch:
      cluster, size = cluster_card(rows[0].cluster), max(1, estimate.batch_size)
      largest = estimates.find_largest_batch(traces, cluster, size)
      estimate = dataclasses.replace(estimate, largest_batch=largest)
    if values.report:
      on_stage("writing the report")
      page.save_report(_drawn(traces, rows, estimate), values.report)
  if values.output:
    formats.save_estimate(estimate, values.output)
  screen = cli.open_console()
  for part in estimate_tables(estimate):
    screen.print(part)
  if values.json:
    print(json.dumps(estimate_to_json(estimate)))


def _drawn(traces: Traces, rows: list[Card], estimate: Estimate) -> Placement:
  """Returns the placement on one device whose report is drawn."""
  _, card = min(
    zip(estimate.steps[0].cards, rows, strict=True),
    key=lambda pair: (not pair[0].fits, pair[0].memory_bytes),
  )
  return estimates.one_device_placement(traces, card)


run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
