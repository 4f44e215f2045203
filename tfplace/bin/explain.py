"""tfplace-explain: explains the step time of a placement."""

import json
import sys
from collections.abc import Sequence

from absl import flags
from rich.text import Text

from tfplace import bounds, core
from tfplace.bin import cli, sources
from tfplace.report.explain import explain
from tfplace.report.explain.tables import explanation_tables

_DESCRIPTION = (
  "Explains the step time of a placement: its critical path, its bottleneck,"
  " the effect of faster links, and its ratio to the proven bound. A"
  " microbatched step also has its bubble and its limits."
)


def _define(values: flags.FlagValues) -> None:
  sources.define_flags(values)
  cli.define(values, "json", "Print JSON instead of tables.", False)


def _main(values: flags.FlagValues) -> None:
  placement = sources.load(values)
  name = placement.problem.graph.name
  with cli.showing_progress(f"Explaining {name}") as on_stage:
    on_stage("proving a lower bound")
    problem = bounds.tightened(placement.problem)
    explanation = explain(core.Placement(problem, placement.devices))
  if values.json:
    print(json.dumps(explanation.to_json()))
    return
  screen = cli.open_console()
  screen.print(Text("\n".join(explanation.summary)), soft_wrap=True)
  for table in explanation_tables(explanation):
    screen.print(table.to_rich(), soft_wrap=True)


def run(argv: Sequence[str] | None = None) -> int:
  """Runs the console script and returns its exit code."""
  return cli.run_command("tfplace-explain", _DESCRIPTION, _define, _main, argv)


if __name__ == "__main__":
  sys.exit(run())
