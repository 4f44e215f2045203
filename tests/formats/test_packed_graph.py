"""Packed graphs: nothing is lost, and nothing broken is let through."""

import pytest

from tests.testing.packed_graphs import odd_graph
from tfplace import core
from tfplace.formats.graph import graph_to_json
from tfplace.formats.packed_graph import pack_graph, unpack_graph


def assert_same(a, b):
  assert graph_to_json(a) == graph_to_json(b)
  assert list(a.time_us) == list(b.time_us)
  for field in (
    "output_offsets",
    "output_bytes",
    "edge_src",
    "colocation",
    "layer",
  ):
    assert getattr(a, field).dtype == getattr(b, field).dtype


@pytest.mark.parametrize(
  "graph",
  [
    odd_graph(),
    core.build_graph("nothing", [], []),
    core.build_graph("alone", [core.OpSpec("a", "X", {})], []),
  ],
  ids=lambda graph: graph.name,
)
def test_a_graph_comes_back_as_it_was(graph):
  assert_same(unpack_graph(pack_graph(graph)), graph)


def test_what_comes_back_cannot_be_written_to():
  graph = unpack_graph(pack_graph(odd_graph()))
  with pytest.raises(ValueError, match="read-only"):
    graph.edge_src[0] = 1
