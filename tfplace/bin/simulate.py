"""tfplace-simulate: simulates one step of a placed graph.

Follows the rules of docs/simulation.md, and writes the evaluation of the step,
a Perfetto trace and a timeline picture.
"""

import sys

from absl import flags

from tfplace import bounds, formats
from tfplace.bin import cli, outputs, sources
from tfplace.graph import Placement
from tfplace.simulate import Simulator


def _define(values: flags.FlagValues) -> None:
  sources.define_flags(values)
  cli.define(values, "output", "tfplace.evaluation.v1 file to write.")
  text = "Prove a tighter lower bound of the step time. Takes seconds."
  cli.define(values, "prove", text, False)
  outputs.define_picture_flags(values)


def _main(values: flags.FlagValues) -> None:
  cli.check_writable(values)
  outputs.check_pictures(values)
  placement = sources.load(values)
  if values.prove:
    with cli.showing_progress("Proving a lower bound"):
      problem = bounds.tightened(placement.problem)
    placement = Placement(problem, placement.devices)
  evaluation = Simulator(placement.problem).evaluate([placement])[0]
  if values.output:
    formats.save_evaluation(evaluation, values.output)
  outputs.write_pictures(values, placement)
  outputs.print_evaluation(evaluation)


run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
