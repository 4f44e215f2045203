"""The flags of what a placement must heed: memory limits, ops kept together."""

from absl import flags

from tfplace import core
from tfplace.bin import cli
from tfplace.core import constraints


def define_wish_flags(values: flags.FlagValues) -> None:
  """Adds `--max_memory` and `--keep_together`."""
  flags.DEFINE_list(
    "max_memory",
    [],
    "Memory that devices may fill, in place of what --cluster says, such as"
    " GPU:0=10GiB,GPU:1=8GiB.",
    flag_values=values,
  )
  flags.DEFINE_list(
    "keep_together",
    [],
    "Patterns of op names such as encoder/* or */lstm_1/*: the ops that are"
    " like one of them share a device.",
    flag_values=values,
  )


def limited(values: flags.FlagValues, cluster: core.Cluster) -> core.Cluster:
  """The cluster with the memory of `--max_memory`.

  Raises:
    UsageError: an item that is not device=size.
    FormatError: no such device, or no size.
  """
  sizes = {}
  for item in values.max_memory:
    device, equals, size = item.rpartition("=")
    if not equals:
      raise cli.UsageError(
        f"--max_memory: {item!r} is not of the form GPU:0=8GiB"
      )
    sizes[device] = size
  return constraints.with_max_memory(cluster, sizes)


def grouped(values: flags.FlagValues, graph: core.OpGraph) -> core.OpGraph:
  """The graph with the groups of `--keep_together`.

  Raises:
    FormatError: a pattern that no op's name is like.
  """
  if not values.keep_together:
    return graph
  patterns = values.keep_together
  groups = [constraints.matching(graph, pattern) for pattern in patterns]
  return constraints.keep_together(graph, groups)
