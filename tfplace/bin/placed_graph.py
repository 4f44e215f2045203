"""The flags that name a placed graph by its files, for commands that need no
model: `tfplace-simulate` and `tfplace-explain`."""

from absl import flags

from tfplace import graph as graph_lib
from tfplace.bin import cli, sources


def define_flags(values: flags.FlagValues) -> None:
  """Adds `--graph`, `--cluster` and `--placement`."""
  sources.define_cluster_flag(values)
  for name, text in (
    ("graph", "tfplace.graph.v1 file."),
    ("placement", "tfplace.placement.v1 file."),
  ):
    flags.DEFINE_string(name, None, text, flag_values=values)


def load(values: flags.FlagValues) -> graph_lib.Placement:
  """The placement that the flags name.

  Raises:
    TfplaceError: a flag is missing, or a file is broken or of another graph.
  """
  graph = graph_lib.load_graph(cli.required(values, "graph"))
  cluster = sources.load_cluster(cli.required(values, "cluster"))
  problem = graph_lib.Problem(graph, cluster)
  path = cli.required(values, "placement")
  return graph_lib.load_placement(path, problem)
