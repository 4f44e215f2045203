"""Graphs of attackers: calls without end, and attributes left to a caller."""

import itertools

import pytest
import tensorflow as tf

from tests.testing.hostile_models import edited, export
from tfplace.errors import ExtractionError, MeasurementError
from tfplace.extraction.functions import trace_saved_model
from tfplace.extraction.graph_def import trace_graph_def
from tfplace.extraction.safety import limits, side_effects
from tfplace.extraction.traced import TracedStep
from tfplace.measure import harness

tf1 = tf.compat.v1


def _calls(*levels, times=1):
  """A library in which each function calls the next one some times."""
  graph_def = tf1.GraphDef()
  for name, called in itertools.pairwise(levels):
    function = graph_def.library.function.add()
    function.signature.name = name
    for number in range(times):
      node = function.node_def.add(name=f"n{number}", op="PartitionedCall")
      node.attr["f"].func.name = called
  graph_def.node.add(name="start", op="PartitionedCall").attr[
    "f"
  ].func.name = levels[0]
  return graph_def


TREES = {
  "itself": (_calls("a", "a"), "is recursive"),
  "by another": (_calls("a", "b", "a"), "is recursive"),
  "blow-up": (_calls(*(f"f{i}" for i in range(30)), times=4), "nodes, more"),
  "deep": (_calls(*(f"f{i}" for i in range(300))), "nested deeper than 100"),
}


@pytest.mark.parametrize("tree", TREES)
def test_calls_are_counted_before_tensorflow_follows_them(tmp_path, tree):
  graph_def, why = TREES[tree]
  path = tmp_path / "g.pb"
  path.write_bytes(graph_def.SerializeToString())
  with pytest.raises(ExtractionError, match=why):
    trace_graph_def(path)

  def add(meta_graph):
    meta_graph.graph_def.library.MergeFrom(graph_def.library)

  model = export(tmp_path / "two", tf.Module())
  with pytest.raises(ExtractionError, match=why):
    trace_saved_model(edited(model, add))


def test_a_function_given_to_a_function_counts_as_called():
  graph_def = _calls("a", "b")
  attr = graph_def.library.function[0].node_def[0].attr["f"].func.attr["g"]
  attr.func.name = "a"
  path_free = side_effects.when_run(graph_def)
  assert path_free is None
  with pytest.raises(ExtractionError, match="is recursive"):
    limits.check_calls(graph_def)


def _node(op, **attrs):
  graph_def = tf1.GraphDef()
  function = graph_def.library.function.add()
  function.signature.name = "body"
  node = function.node_def.add(name="n", op=op)
  for key, value in attrs.items():
    node.attr[key].CopyFrom(value)
  return graph_def


DECIDING = {
  "PrintV2": ["output_stream"],
  "DecodeProtoV2": ["descriptor_source"],
  "EncodeProto": ["descriptor_source"],
  "FixedUnigramCandidateSampler": ["vocab_file"],
  "PartitionedCall": ["f", "config_proto", "config", "executor_type"],
  "StatefulPartitionedCall": ["f", "config_proto", "config", "executor_type"],
  "While": ["body", "cond"],
  "If": ["then_branch", "else_branch"],
  "Case": ["branches"],
  "SymbolicGradient": ["f"],
}
PAIRS = [(op, name) for op, names in DECIDING.items() for name in names]


@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_an_attribute_that_decides_is_not_left_to_the_caller(op, name):
  assert side_effects.when_run(_node(op)) is None
  value = tf1.AttrValue(placeholder="out")
  assert side_effects.when_run(_node(op, **{name: value}))
  if name.endswith(("stream", "source", "file")):  # It must be a string.
    files = tf1.AttrValue.ListValue(s=[b"file:///x"])
    for value in ({"i": 1}, {"b": True}, {}, {"list": files}):
      wrong = {name: tf1.AttrValue(**value)}
      assert side_effects.when_run(_node(op, **wrong)), value


def test_a_type_may_be_left_to_the_caller():
  value = tf1.AttrValue(placeholder="T")
  assert side_effects.when_run(_node("PrintV2")) is None
  assert side_effects.when_run(_node("Identity", T=value)) is None


@pytest.mark.parametrize("as_op", [False, True])
def test_measuring_a_loop_prints_to_no_file_of_its_caller(
  canary, monkeypatch, as_op
):
  """The attack as it was found: through the function of a loop's body."""
  graph_def = _node("PrintV2", output_stream=tf1.AttrValue(placeholder="out"))
  if as_op:
    call = graph_def.node.add(name="loop", op="body")
    call.attr["out"].s = f"file://{canary.file}".encode()
  else:
    call = graph_def.node.add(name="loop", op="While")
    body = call.attr["body"].func
    body.name = "body"
    body.attr["out"].s = f"file://{canary.file}".encode()
  traced = TracedStep("bad", graph_def, {}, (), ("loop",), {}, False)
  monkeypatch.setattr(harness, "_check", lambda *_: None)
  with pytest.raises(MeasurementError, match=r"'n' \(PrintV2\)"):
    harness.MeasurementHarness(None, traced, None)
  assert canary.sings()
