"""Groups of ops that a user keeps on one device, on a graph made by hand."""

import pytest

from tfplace.errors import FormatError
from tfplace.graph import Cluster, Device, OpSpec, Problem, build_graph
from tfplace.graph.graph_edits import keep_together, matching

CLUSTER = Cluster("one", (Device("/device:CPU:0", "CPU"),))


def _graph():
  groups = (None, "x", "x", None, "y", "y", None)
  names = ("net/a", "net/b", "b/c", "d", "net_1/a", "f", "g")
  ops = [
    OpSpec(name, "T", {"CPU": 1.0}, colocation=group)
    for name, group in zip(names, groups, strict=True)
  ]
  return build_graph("seven", ops, [(0, -1, 1)])


def test_groups_that_meet_are_merged_and_the_others_stay():
  # x = {1, 2} and {0, 1} meet in 1; y = {4, 5} and {5, 6} in 5; 3 is free.
  graph = keep_together(_graph(), [[1, 0], [5, 6], [3]])
  assert Problem(graph, CLUSTER).group_of.tolist() == [0, 0, 0, 1, 2, 2, 2]
  assert graph.colocation_names == ("net/a", "net_1/a")
  assert graph.colocation.tolist() == [0, 0, 0, -1, 1, 1, 1]


def test_a_pattern_takes_ops_and_scopes():
  assert matching(_graph(), "net") == [0, 1]
  assert matching(_graph(), "net*") == [0, 1, 4]
  assert matching(_graph(), "*/a") == [0, 4]
  with pytest.raises(FormatError, match=r"'nets'.*'net/a'"):
    matching(_graph(), "nets")
