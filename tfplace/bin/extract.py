"""tfplace-extract: writes a model's dataflow graph with its costs."""

import sys
from collections.abc import Sequence

from absl import flags

from tfplace import formats
from tfplace.bin import cli, sources
from tfplace.formats import files
from tfplace.plan.sources import COMPILE, NONE, XLA

_DESCRIPTION = (
  "Extracts the dataflow graph of a model's step, with the cost of every op"
  " on the device kinds of --cluster, and writes it as tfplace.graph.v1."
)


def _define(values: flags.FlagValues) -> None:
  sources.define_source_flags(values)
  sources.define_cluster_flag(values, default="v100x1")
  cli.define(values, "output", "File to write (.json or .json.gz).")
  cli.define(
    values,
    "compile",
    "xla: fuse the ops of a layer, pass and microbatch that XLA would compile.",
    NONE,
    choices=COMPILE,
  )


def _main(values: flags.FlagValues) -> None:
  output = cli.required(values, "output")
  cli.check_writable(output)
  if sources.chosen_source(values) == "graph" and values.compile != NONE:
    raise cli.UsageError(
      f"--compile={values.compile} applies to models, not to --graph, whose ops"
      " have no shapes; extract the model with it"
    )
  with sources.opened_cluster(values) as (cluster, _):
    graph, _ = sources.load_source(
      values, cluster, compile_units=values.compile == XLA
    )
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
