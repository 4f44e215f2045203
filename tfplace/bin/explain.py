"""tfplace-explain: why a placement takes as long as it does."""

import json
import sys
from collections.abc import Sequence

from absl import flags

from tfplace import bounds, core
from tfplace.bin import cli, guarded, outputs, sources
from tfplace.report.explain import Explanation, explain
from tfplace.report.explain.output import (
  explanation_tables,
  explanation_to_json,
)

_DESCRIPTION = (
  "Says why a placement takes as long as it does: its critical path, its"
  " bottleneck, what one more device or faster links would give, how far it is"
  " from the proven bound; of a step in microbatches how they are used, how"
  " long devices idle and what limits it; with --op, why an op is where it is."
)


def _define(values: flags.FlagValues) -> None:
  sources.define_flags(values)
  flags.DEFINE_string(
    "op",
    None,
    "Op to look at: what moving it to each other device would do.",
    flag_values=values,
  )
  flags.DEFINE_float(
    "seconds",
    0.0,
    "Seconds to search a new placement for each change of the hardware; 0"
    " simulates the placement as it is.",
    lower_bound=0.0,
    flag_values=values,
  )
  flags.DEFINE_integer(
    "seed", 0, "Fixes every random choice.", lower_bound=0, flag_values=values
  )
  flags.DEFINE_bool(
    "json", False, "Print JSON instead of tables.", flag_values=values
  )


def _main(values: flags.FlagValues) -> None:
  placement = sources.load(values)
  if values.seconds:
    cli.load_tensorflow()  # for the learned policy; quiet, off the clock
  name = placement.problem.graph.name
  with cli.showing_progress(f"Explaining {name}") as on_stage:
    on_stage("proving a lower bound")
    problem = bounds.tightened(placement.problem)
    explanation = explain(
      core.Placement(problem, placement.devices),
      values.op,
      values.seconds,
      values.seed,
      on_stage,
    )
  _print(explanation, values.json)


def _print(explanation: Explanation, as_json: bool) -> None:
  if as_json:
    print(json.dumps(explanation_to_json(explanation)))
    return
  screen = outputs.open_console()
  for part in explanation_tables(explanation):
    screen.print(part, soft_wrap=True)


def run(argv: Sequence[str] | None = None) -> int:
  """The console script; returns its exit code."""
  return guarded.run_command(
    "tfplace-explain", _DESCRIPTION, _define, _main, argv
  )


if __name__ == "__main__":
  sys.exit(run())
