"""What the commands print and draw, the same for every command."""

import json
from collections.abc import Sequence

from absl import flags
from rich import console

from tfplace import graph as graph_lib
from tfplace.bin import cli
from tfplace.graph import evaluation_format
from tfplace.placers.base import Result
from tfplace.report import page, table, timeline, trace
from tfplace.simulate import Simulator

PICTURES = ("trace", "timeline", "report")


def define_picture_flags(values: flags.FlagValues) -> None:
  """Adds `--trace`, `--timeline` and `--report`."""
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
  flags.DEFINE_string(
    "report",
    None,
    "Report to write, one .html file with all pictures and tables; needs the"
    " extra 'report'.",
    flag_values=values,
  )


def check_pictures(values: flags.FlagValues) -> None:
  """Fails before the work is done rather than after it.

  Raises:
    TfplaceError: a file could not be written, or what draws it is missing.
  """
  for flag in PICTURES:
    cli.check_writable(values[flag].value)
  if values.timeline:
    timeline.picture_kind(values.timeline)
  if values.report:
    page.check_suffix(values.report)
    page.check_installed()


def write_pictures(
  values: flags.FlagValues,
  placement: graph_lib.Placement,
  results: Sequence[Result] = (),
) -> None:
  """Writes what `define_picture_flags` asked for.

  Args:
    values: the command's flags.
    placement: what is drawn.
    results: of placers, for the report's table.

  Raises:
    TfplaceError: a file cannot be written.
  """
  paths = values.trace, values.timeline
  if values.report:
    page.save_report(placement, values.report, results)
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
