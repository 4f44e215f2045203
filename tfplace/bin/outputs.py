"""What the commands print and draw, the same for every command."""

import json
from collections.abc import Sequence

from absl import flags
from rich import console

from tfplace import graph as graph_lib
from tfplace.graph import evaluation_format
from tfplace.placers.base import Result
from tfplace.report import table, timeline, trace


def define_picture_flags(values: flags.FlagValues) -> None:
  """Adds `--trace` and `--timeline`."""
  flags.DEFINE_string(
    "trace",
    None,
    "Trace of the simulated step to write; opens in Perfetto.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "timeline",
    None,
    "Picture of the simulated step to write (.png, .svg or .pdf).",
    flag_values=values,
  )


def write_pictures(
  values: flags.FlagValues, placement: graph_lib.Placement
) -> None:
  """Writes what `define_picture_flags` asked for.

  Raises:
    FormatError: a file cannot be written.
  """
  if values["trace"].value:
    trace.save_trace(placement, values["trace"].value)
  if values["timeline"].value:
    timeline.save_timeline(placement, values["timeline"].value)


def print_evaluation(evaluation: graph_lib.Evaluation) -> None:
  """Prints one evaluation as JSON, on one line."""
  print(json.dumps(evaluation_format.evaluation_to_json(evaluation)))


def print_results(
  results: Sequence[Result],
  best: Result,
  measured: Sequence[graph_lib.Evaluation] | None = None,
) -> None:
  """Prints the table of placers, the best one marked."""
  console.Console().print(
    table.results_table(results, best=best, measured=measured)
  )
