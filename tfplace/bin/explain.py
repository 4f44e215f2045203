"""tfplace-explain: explains the step time of a placement.

Shows its critical path, its bottleneck, the effect of faster devices and links,
and its ratio to the proven bound. A microbatched step also has its bubble and
its limits.
"""

import json
import sys

from absl import flags
from rich.text import Text

from tfplace import bounds
from tfplace.bin import cli, sources
from tfplace.graph import Placement
from tfplace.report.explain import explain
from tfplace.report.explain.tables import explanation_tables


def _define(values: flags.FlagValues) -> None:
  sources.define_flags(values)
  cli.define(values, "json", "Print JSON instead of tables.", False)


def _main(values: flags.FlagValues) -> None:
  placement = sources.load(values)
  name = placement.problem.graph.name
  with cli.showing_progress(f"Explaining {name}") as on_stage:
    on_stage("proving a lower bound")
    problem = bounds.tightened(placement.problem)
    explanation = explain(Placement(problem, placement.devices))
  if values.json:
    print(json.dumps(explanation.to_json()))
    return
  screen = cli.open_console()
  screen.print(Text("\n".join(explanation.summary)), soft_wrap=True)
  for table in explanation_tables(explanation):
    screen.print(table.to_rich(), soft_wrap=True)


run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
