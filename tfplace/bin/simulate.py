"""tfplace-simulate: one placement of a graph, evaluated exactly."""

import sys
from collections.abc import Sequence

from absl import flags

from tfplace import graph as graph_lib
from tfplace.bin import cli, outputs, sources
from tfplace.simulate import Simulator

_DESCRIPTION = (
  "Simulates one step of a placed graph by the rules of the formats, and"
  " writes its evaluation, a Perfetto trace and a timeline picture."
)


def _define(values: flags.FlagValues) -> None:
  sources.define_cluster_flag(values)
  for name, text in (
    ("graph", "tfplace.graph.v1 file."),
    ("placement", "tfplace.placement.v1 file."),
    ("output", "tfplace.evaluation.v1 file to write."),
  ):
    flags.DEFINE_string(name, None, text, flag_values=values)
  outputs.define_picture_flags(values)


def _main(values: flags.FlagValues) -> None:
  for flag in ("output", "trace", "timeline"):
    cli.check_writable(values[flag].value)
  graph = graph_lib.load_graph(cli.required(values, "graph"))
  cluster = sources.load_cluster(cli.required(values, "cluster"))
  problem = graph_lib.Problem(graph, cluster)
  placement = graph_lib.load_placement(
    cli.required(values, "placement"), problem
  )
  evaluation = Simulator(problem).evaluate([placement])[0]
  if values.output:
    evaluation.save(values.output)
  outputs.write_pictures(values, placement)
  outputs.print_evaluation(evaluation)


def run(argv: Sequence[str] | None = None) -> int:
  """The console script; returns its exit code."""
  return cli.run_command("tfplace-simulate", _DESCRIPTION, _define, _main, argv)


if __name__ == "__main__":
  sys.exit(run())
