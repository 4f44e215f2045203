"""Files of strangers: what is too large is refused before it is parsed."""

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tfplace.errors import ExtractionError
from tfplace.extraction.functions import trace_saved_model
from tfplace.extraction.graph_def import read_graph_def, trace_graph_def
from tfplace.extraction.safety import limits


def nodes_of(count):
  graph_def = tf.compat.v1.GraphDef()
  for number in range(count):
    graph_def.node.add(name=f"n{number}", op="NoOp")
  return graph_def


@pytest.mark.parametrize(
  ("name", "limit"), [("g.pb", "MAX_BYTES"), ("g.pbtxt", "MAX_TEXT_BYTES")]
)
def test_a_file_past_the_size_limit_is_not_read(
  tmp_path, monkeypatch, name, limit
):
  monkeypatch.setattr(limits, limit, 99)
  path = tmp_path / name
  path.write_bytes(b"x" * 100)
  with pytest.raises(ExtractionError, match="has 100 bytes or more") as caught:
    trace_graph_def(path)
  assert "a GraphDef file has 99 at most" in str(caught.value)
  assert caught.value.num_bytes == 100


def test_a_pipe_that_never_ends_is_read_to_the_limit_only(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(limits, "MAX_BYTES", 99)
  with pytest.raises(ExtractionError, match="has 100 bytes or more"):
    read_graph_def("/dev/zero")


@pytest.mark.parametrize("functions", [False, True])
def test_nodes_past_the_limit_are_counted_before_they_are_parsed(
  tmp_path, monkeypatch, functions
):
  monkeypatch.setattr(limits, "MAX_NODES", 10)
  graph_def = nodes_of(6)
  for number in range(2 if functions else 0):
    function = graph_def.library.function.add()
    function.signature.name = f"f{number}"
    function.node_def.extend(nodes_of(2).node)
  path = tmp_path / "g.pb"
  path.write_bytes(graph_def.SerializeToString())
  assert len(read_graph_def(str(path)).node) == 6  # 10 in all: allowed
  graph_def.node.add(name="more", op="NoOp")
  path.write_bytes(graph_def.SerializeToString())
  if functions:
    with pytest.raises(ExtractionError, match="more than 10 nodes"):
      read_graph_def(str(path))
  else:
    assert len(read_graph_def(str(path)).node) == 7


def test_nodes_of_a_text_file_are_counted_too(tmp_path, monkeypatch):
  monkeypatch.setattr(limits, "MAX_NODES", 10)
  path = tmp_path / "g.pbtxt"
  path.write_text("node {}\n" * 5 + "node:<>" * 5)
  assert len(read_graph_def(str(path)).node) == 10
  path.write_text("node {}\n" * 11)
  with pytest.raises(ExtractionError, match="more than 10 nodes"):
    read_graph_def(str(path))


def test_a_saved_models_graph_has_the_same_limits(tmp_path, monkeypatch):
  monkeypatch.setattr(limits, "MAX_NODES", 10)
  model = saved_model_pb2.SavedModel()
  for _ in range(2):
    model.meta_graphs.add().graph_def.CopyFrom(nodes_of(6))
  (tmp_path / "saved_model.pb").write_bytes(model.SerializeToString())
  with pytest.raises(ExtractionError, match="more than 10 nodes"):
    trace_saved_model(tmp_path)
  monkeypatch.setattr(limits, "MAX_BYTES", 99)
  with pytest.raises(ExtractionError, match="SavedModel file has 99 at most"):
    trace_saved_model(tmp_path)


@pytest.mark.parametrize(
  ("data", "why"),
  [
    (b"\x0a\x05abc", "ends in the middle of an element"),
    (b"\x0a", "ends in the middle of a number"),
    (b"\x08" + b"\xff" * 10, "more than ten bytes"),
    (b"\x0b", "wire type 3"),
  ],
)
def test_broken_bytes_are_told_from_a_graph(tmp_path, data, why):
  path = tmp_path / "g.pb"
  path.write_bytes(data)
  with pytest.raises(ExtractionError, match=f"damaged: .*{why}"):
    read_graph_def(str(path))
