"""Output of all commands: tables, pictures and files."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from tfplace import formats
from tfplace.bin import cli
from tfplace.formats.results import evaluation_to_json
from tfplace.graph import Evaluation, Placement
from tfplace.graph.evaluation import Result
from tfplace.graph.order import RANK
from tfplace.report import page, trace
from tfplace.report.rows import as_schedule
from tfplace.simulate import control_edges

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep


def define_picture_flags(values: flags.FlagValues) -> None:
  """Adds `--trace`, `--timeline` and `--report`."""
  cli.define_all(
    values,
    {
      "trace": "Trace of the simulated step to write, for Perfetto.",
      "timeline": "Picture of the simulated step (.png, .svg or .pdf).",
      "report": "Report to write: one .html file with all pictures and tables."
      " Requires the extra 'report'.",
    },
  )


def check_pictures(values: flags.FlagValues) -> None:
  """Checks the picture flags before any work is done.

  Raises:
    TfplaceError: a suffix is wrong, or a package is missing.
  """
  if values.timeline:
    from tfplace.report import timeline  # Needs the extra `report`.

    timeline.picture_kind(values.timeline)
  if values.report:
    page.check_report(values.report)


def write_pictures(
  values: flags.FlagValues,
  placement: Placement,
  results: Sequence[Result] = (),
) -> None:
  """Writes the requested pictures.

  Raises:
    TfplaceError: a file cannot be written.
  """
  if not (values.report or values.trace or values.timeline):
    return
  schedule = as_schedule(placement)
  if values.report:
    page.save_report(schedule, values.report, results)
  if values.trace:
    trace.save_trace(schedule, values.trace)
  if values.timeline:
    from tfplace.report import timeline

    timeline.save_timeline(schedule, values.timeline)


def print_evaluation(evaluation: Evaluation) -> None:
  """Prints an evaluation as one line of JSON."""
  print(json.dumps(evaluation_to_json(evaluation)))


FILES = {  # Flags of what tfplace-place writes.
  "output": "tfplace.placement.v1 file to write.",
  "output_graph_def": "GraphDef to write (.pb or .pbtxt), with the device of"
  " every node.",
  "output_saved_model": "Directory to write: a placed copy of --saved_model.",
}


def check_files(values: flags.FlagValues) -> None:
  """Checks the output flags before any work is done.

  Raises:
    UsageError: a flag contradicts another one, or its file exists.
  """
  if values.output_graph_def and values.graph:
    raise cli.UsageError(
      "--output_graph_def needs a TensorFlow model; --graph has only costs"
    )
  if not values.output_saved_model:
    return
  if values.order == RANK:
    raise cli.UsageError(
      f"--order={values.order}: the functions of --output_saved_model cannot"
      " enforce an order"
    )
  if not values.saved_model:
    raise cli.UsageError("--output_saved_model is a copy of --saved_model")
  if os.path.lexists(values.output_saved_model):
    raise cli.UsageError(f"{values.output_saved_model!r} already exists")


def write_files(
  values: flags.FlagValues, placement: Placement, traced: "TracedStep | None"
) -> None:
  """Writes the requested files, each atomically.

  Args:
    traced: the traced step, or None if no file requires it.
  """
  if values.output:
    extra = {**placement.extra, **control_edges.op_order_to_json(placement)}
    ordered = dataclasses.replace(placement, extra=extra)
    formats.save_placement(ordered, values.output)
  if values.output_graph_def and traced is not None:
    from tfplace.keras import write_placed_graph_def  # Imports TensorFlow.

    write_placed_graph_def(traced, placement, values.output_graph_def)
  if values.output_saved_model:
    from tfplace.keras import write_placed_saved_model

    cli.load_tensorflow()
    with cli.showing_progress(f"Writing {values.output_saved_model}"):
      write_placed_saved_model(
        values.saved_model,
        placement,
        values.output_saved_model,
        batch_size=values.batch_size,
        allow_side_effects=values.allow_side_effects,
      )
