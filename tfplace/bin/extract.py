"""tfplace-extract: writes a model's dataflow graph with its costs.

The graph of the model's step has the cost of every op on the device kinds of
--cluster. It is written as tfplace.graph.v1.
"""

import sys

from absl import flags

from tfplace import formats
from tfplace.bin import cli, sources


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values, default="v100x1")
  cli.define(values, "output", "File to write (.json or .json.gz).")


def _main(values: flags.FlagValues) -> None:
  output = cli.required(values, "output")
  cli.check_writable(values)
  with sources.opened_cluster(values) as (cluster, _):
    graph, _ = sources.load_source(values, cluster)
  formats.save_graph(graph, output)
  print(
    f"{output}: {graph.name}, {graph.num_ops} ops, {graph.num_edges} edges",
    file=sys.stderr if output.startswith("/dev/") else sys.stdout,
  )


run = cli.command(__doc__, _define, _main)

if __name__ == "__main__":
  sys.exit(run())
