import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from tests.testing import placed_models as at
from tests.testing.slow import slow
from tfplace.errors import ApplyError
from tfplace.extraction.traced import feed_values, with_initializers
from tfplace.graph import Placement
from tfplace.keras import placed_graph_def, write_placed_graph_def
from tfplace.simulate import control_edges

tf1 = tf.compat.v1


def _load(path):
  graph_def = tf1.GraphDef()
  with open(path, "rb") as file:
    data = file.read()
  if str(path).endswith(".pbtxt"):
    return text_format.Parse(data.decode(), graph_def)
  graph_def.ParseFromString(data)
  return graph_def


def _run(traced, steps=3):
  """Losses of a session that may move nothing, and where each op ran."""
  prepared = with_initializers(traced)
  config = tf1.ConfigProto(device_count={"CPU": 3}, allow_soft_placement=False)
  options = tf1.RunOptions(output_partition_graphs=True)
  metadata = tf1.RunMetadata()
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(prepared.graph_def, name="")
    with tf1.Session(graph=graph, config=config) as session:
      session.run(list(prepared.assignments), dict(prepared.feeds))
      losses = []
      for _ in range(steps):
        fetches = [traced.fetches[0], list(traced.targets)]
        feeds = feed_values(traced)
        losses.append(session.run(fetches, feeds, options, metadata)[0])
  nodes = [n for graph in metadata.partition_graphs for n in graph.node]
  return np.array(losses), nodes


@pytest.mark.parametrize(
  ("kind", "suffix"),
  [("dense", ".pbtxt"), ("two_inputs", ".pb"), slow("lstm", ".pb")],
)
def test_the_file_runs_as_such_on_its_devices(kind, suffix, tmp_path):
  traced, placement = at.unit_placement(at.build(kind), kind)
  path = tmp_path / f"g{suffix}"
  write_placed_graph_def(traced, placement, path)
  loaded = dataclasses.replace(traced, graph_def=_load(path))
  devices = {node.name: node.device for node in loaded.graph_def.node}
  assert devices == placement.assignments
  losses, nodes = _run(loaded)
  expected, _ = _run(traced)
  np.testing.assert_allclose(losses, expected, atol=1e-5)
  types = {node.name: node.op for node in traced.graph_def.node}
  same = [node for node in nodes if types.get(node.name) == node.op]
  assert len(same) > 0.4 * len(types)
  for node in same:
    assert node.device == placement.assignments[node.name], node.name
  assert len({node.device for node in same}) == 3


def test_a_placement_of_another_graph_is_refused():
  traced, placement = at.unit_placement(at.build("dense"), "dense")
  before = traced.graph_def.SerializeToString(deterministic=True)
  placed_graph_def(traced, placement)  # does not change the traced graph
  assert traced.graph_def.SerializeToString(deterministic=True) == before
  _, other = at.unit_placement(at.build("two_inputs"), "two_inputs")
  with pytest.raises(ApplyError, match="is not in the placement"):
    placed_graph_def(traced, other)


def test_by_rank_each_device_has_a_chain_and_the_losses_stay(tmp_path):
  traced, given = at.unit_placement(at.build("dense"), "dense")
  ordered = Placement(given.problem.in_order("rank"), given.devices)
  write_placed_graph_def(traced, ordered, tmp_path / "g.pb")
  loaded = dataclasses.replace(traced, graph_def=_load(tmp_path / "g.pb"))
  inputs = {node.name: list(node.input) for node in loaded.graph_def.node}
  names = ordered.problem.graph.names
  for chain in control_edges.chains(ordered):
    for before, after in itertools.pairwise(chain.tolist()):
      assert f"^{names[before]}" in inputs[names[after]]
  losses, _ = _run(loaded)
  expected, _ = _run(traced)
  np.testing.assert_allclose(losses, expected, atol=1e-5)
