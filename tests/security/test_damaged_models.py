"""Damaged and hostile GraphDef and SavedModel files are refused by name."""

import pytest
import tensorflow as tf

from tfplace.bin import extract as command
from tfplace.errors import ExtractionError
from tfplace.extraction.functions import trace_saved_model
from tfplace.extraction.graph_def import trace_graph_def


class _Doubling(tf.Module):
  @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
  def __call__(self, x):
    return {"y": 2.0 * x}


def _graph_def():
  graph = tf.Graph()
  with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, (None, 2), "x")
    y = tf.matmul(x, tf.constant([[1.0], [2.0]], name="w"), name="y")
    tf.square(y, name="z")
    tf.exp(x, name="e")
  return graph.as_graph_def()


@pytest.mark.parametrize("keep", [0, 40, 400])
def test_a_truncated_saved_model_is_refused(tmp_path, keep):
  module = _Doubling()
  tf.saved_model.save(
    module, str(tmp_path), signatures={"serving_default": module.__call__}
  )
  path = tmp_path / "saved_model.pb"
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(ExtractionError, match=tmp_path.name):
    trace_saved_model(tmp_path)


# Name -> changed node, attribute of the node, new value, and the message.
DAMAGES = {
  "duplicate": (4, "name", "y", "'y'"),
  "control character": (4, "name", "e\x1b[2J", r"'e\\x1b\[2J'"),
  "ghost": (2, "input", "ghost", "'y'.*'ghost'"),
  "no such output": (3, "input", "y:7", "'z'.*output 7 of 'y'"),
  "cycle": (2, "input", "z", "'[yz]' is on, or depends on, a cycle"),
  "unknown op": (4, "op", "NoSuchOp", "'e'.*'NoSuchOp'"),
  "wrong type": (4, "T", tf.int32.as_datatype_enum, "at node 'e'"),
  "huge": (4, "op", "Split", "'e'"),  # of a billion outputs
  "empty": (None, "", "", "without nodes"),
}


def _damaged(number, attribute, value):
  graph_def = _graph_def()
  if number is None:
    del graph_def.node[:]
    return graph_def
  node = graph_def.node[number]
  if attribute == "input":
    node.input[0] = value
  elif attribute == "T":
    node.attr["T"].type = value
  else:
    setattr(node, attribute, value)
  if value == "Split":
    node.attr["num_split"].i = 10**9
  return graph_def


@pytest.mark.parametrize("case", DAMAGES)
def test_a_hostile_graph_def_is_refused_by_file_and_node(tmp_path, case):
  *damage, says = DAMAGES[case]
  path = tmp_path / "bad.pb"
  path.write_bytes(_damaged(*damage).SerializeToString())
  with pytest.raises(ExtractionError, match=f"(?s)bad\\.pb.*{says}") as error:
    trace_graph_def(path)
  assert "\x1b" not in str(error.value)


def test_text_that_is_no_graph_def_is_refused_with_its_position(tmp_path):
  path = tmp_path / "bad.pbtxt"
  path.write_text("node {\n  nome: 'a'\n}\n")
  with pytest.raises(ExtractionError, match=r"bad\.pbtxt.*2:3"):
    trace_graph_def(path)


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"\xff" * 64, b"{}"])
@pytest.mark.parametrize("suffix", [".pb", ".pbtxt"])
def test_other_bytes_are_refused_by_name(tmp_path, content, suffix):
  path = tmp_path / f"junk{suffix}"
  path.write_bytes(content)
  with pytest.raises(ExtractionError, match=f"junk\\{suffix}"):
    trace_graph_def(path)


def test_hostile_files_are_named_and_leave_the_old_output(tmp_path, capsys):
  old = tmp_path / "out.json"
  old.write_text("old")
  for name, content in {
    "cut.json": b'{"format": "tfplace.graph.v1", "na',
    "wrong.pb": b"\xff\xfe\x00 no proto",
    "wrong.pbtxt": b"node { name: 'a' op: }",
    "wrong.keras": b"PK\x03\x04 no zip",
  }.items():
    path = tmp_path / name
    path.write_bytes(content)
    kind = {"json": "graph", "keras": "keras_model"}.get(
      name.split(".")[1], "graph_def"
    )
    assert command.run([f"--{kind}={path}", f"--output={old}"]) == 1
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 1, errors
    assert str(path) in errors[0]
    assert old.read_text() == "old"
