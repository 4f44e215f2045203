"""tfplace-extract: writes a model's dataflow graph with its costs."""

import sys
from collections.abc import Sequence

from absl import flags

from tfplace import formats
from tfplace.bin import cli, sources
from tfplace.formats import files

_DESCRIPTION = (
  "Extracts the dataflow graph of a model's step, with the cost of every op"
  " on the device kinds of --cluster, and writes it as tfplace.graph.v1."
)


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values, default="v100x1")
  cli.define(values, "output", "File to write (.json or .json.gz).")


def _main(values: flags.FlagValues) -> None:
  output = cli.required(values, "output")
  cli.check_writable(output)
  with sources.opened_cluster(values) as (cluster, _):
    graph, _ = sources.load_source(values, cluster)
  formats.save_graph(graph, output)
  print(
    f"{output}: {graph.name}, {graph.num_ops} ops, {graph.num_edges} edges",
    file=sys.stderr if files.is_standard_output(output) else sys.stdout,
  )


def run(argv: Sequence[str] | None = None) -> int:
  """Runs the console script and returns its exit code."""
  return cli.run_command("tfplace-extract", _DESCRIPTION, _define, _main, argv)


if __name__ == "__main__":
  sys.exit(run())
