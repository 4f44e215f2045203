"""What the commands print and draw, the same for every command."""

import json
from collections.abc import Sequence

from absl import flags
from rich import console

from tfplace import graph as graph_lib
from tfplace.graph import evaluation_format
from tfplace.placers.base import Result
from tfplace.report import table, timeline, trace
from tfplace.simulate import Simulator


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
  paths = values.trace, values.timeline
  if not any(paths):
    return
  schedule = Simulator(placement.problem).schedule(placement)
  if paths[0]:
    trace.save_trace(schedule, paths[0])
  if paths[1]:
    timeline.save_timeline(schedule, paths[1])


def print_evaluation(evaluation: graph_lib.Evaluation) -> None:
  """Prints one evaluation as JSON, on one line."""
  print(json.dumps(evaluation_format.evaluation_to_json(evaluation)))


def print_results(
  results: Sequence[Result],
  best: Result,
  measured: Sequence[graph_lib.Evaluation] | None = None,
) -> None:
  """Prints the table of placers, the best bold.

  Args:
    results: a row each.
    best: the one to mark.
    measured: what each of `results` measured, where they were run.
  """
  open_console().print(
    table.results_table(results, best=best, measured=measured)
  )


def open_console() -> console.Console:
  """Standard output for Rich; a log has no width of its own, so it gets one."""
  screen = console.Console()
  if not screen.is_terminal:
    screen.width = 120
  return screen
