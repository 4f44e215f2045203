"""The flags that name a placed graph, for the commands that look at one:
`tfplace-simulate` and `tfplace-explain`."""

from absl import flags

from tfplace import graph as graph_lib
from tfplace.bin import cli, sources


def define_flags(values: flags.FlagValues) -> None:
  """Adds `--placement`, `--cluster` and the flags of a graph source."""
  sources.define_source_flags(values)
  sources.define_cluster_flag(values)
  flags.DEFINE_string(
    "placement", None, "tfplace.placement.v1 file.", flag_values=values
  )


def load(values: flags.FlagValues) -> graph_lib.Placement:
  """The placement that the flags name.

  Raises:
    TfplaceError: a flag is missing, or a file is broken or of another graph.
  """
  sources.chosen_source(values)
  cluster = sources.load_cluster(cli.required(values, "cluster"))
  path = cli.required(values, "placement")
  graph = sources.load_source(values, cluster).graph
  return graph_lib.load_placement(path, graph_lib.Problem(graph, cluster))
