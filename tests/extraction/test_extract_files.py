"""SavedModel directories and GraphDef files."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from tests.testing.traced_steps import run_steps
from tfplace.errors import ExtractionError
from tfplace.extraction import structure
from tfplace.extraction.functions import trace_saved_model
from tfplace.extraction.graph_def import trace_graph_def
from tfplace.extraction.structure import skeleton


class _Affine(tf.Module):
  def __init__(self):
    self.w = tf.Variable([[2.0], [3.0]], name="w")

  @tf.function(input_signature=[tf.TensorSpec((None, 2), tf.float32)])
  def __call__(self, x):
    return {"y": self._inner(x)}

  @tf.function
  def _inner(self, x):
    return x @ self.w + 1.0

  @tf.function(input_signature=[tf.TensorSpec((None, None), tf.float32)])
  def loose(self, x):
    return {"sum": tf.reduce_sum(x)}


def _save(path):
  module = _Affine()
  tf.saved_model.save(
    module,
    str(path),
    signatures={"serving_default": module.__call__, "loose": module.loose},
  )


def test_a_saved_model_s_signature_computes_the_same(tmp_path):
  _save(tmp_path)
  traced = trace_saved_model(tmp_path, batch_size=3)
  assert not any("PartitionedCall" in n.op for n in traced.graph_def.node)
  (feed,) = traced.feeds.values()
  assert feed.shape == (3, 2)
  (spec,) = traced.variables.values()
  np.testing.assert_array_equal(spec.value, [[2.0], [3.0]])
  x = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
  [[y]] = run_steps(traced, [{feed.tensor: x}])
  np.testing.assert_array_equal(y, [[3.0], [4.0], [6.0]])


@pytest.mark.parametrize(
  ("folder", "signature", "says"),
  [
    ("model", "other", "'other'.*'loose'"),
    ("model", "loose", "'x'"),  # a dimension that is unknown
    ("nothing", None, "nothing"),
  ],
)
def test_a_wrong_saved_model_is_named(tmp_path, folder, signature, says):
  _save(tmp_path / "model")
  with pytest.raises(ExtractionError, match=says):
    trace_saved_model(tmp_path / folder, signature=signature)


def _graph_def(batch=None):
  graph = tf.Graph()
  with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, (batch, 2), "x")
    y = tf.matmul(x, tf.constant([[1.0], [2.0]], name="w"), name="y")
    tf.square(y, name="z")
    tf.exp(x, name="e")
  return graph.as_graph_def()


def _write(path, graph_def):
  if path.suffix == ".pbtxt":
    path.write_text(text_format.MessageToString(graph_def))
  else:
    path.write_bytes(graph_def.SerializeToString())
  return path


@pytest.mark.parametrize("suffix", [".pb", ".pbtxt"])
def test_a_graph_def_keeps_its_nodes_and_runs(tmp_path, suffix):
  path = _write(tmp_path / f"g{suffix}", _graph_def())
  traced = trace_graph_def(path, batch_size=2)
  assert traced.name == "g"
  assert [n.name for n in traced.graph_def.node] == ["x", "w", "y", "z", "e"]
  assert traced.fetches == ("z:0", "e:0")
  assert traced.feeds["x"].shape == (2, 2)
  x = np.array([[1, 1], [0, 2]], np.float32)
  [[z, _]] = run_steps(traced, [{"x:0": x}])
  np.testing.assert_array_equal(z, [[9.0], [16.0]])


def test_a_graph_def_of_a_traced_training_step_trains(tmp_path):
  graph = tf.Graph()
  with graph.as_default():
    v = tf.compat.v1.get_variable(
      "v", initializer=tf.constant(1.0), use_resource=True
    )
    old = tf.compat.v1.get_variable(
      "old", initializer=tf.constant(1.0), use_resource=False
    )
    loss = tf.square(v - 3.0, name="loss")
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.25)
    with tf.control_dependencies([tf.compat.v1.assign_add(old, 1.0)]):
      optimizer.minimize(loss, name="train")
  step = structure.prune(graph.as_graph_def(), ["loss", "train"])
  traced = trace_graph_def(_write(tmp_path / "g.pb", step))
  traced = dataclasses.replace(traced, fetches=("loss:0",))
  assert traced.training
  assert set(traced.variables) == {"v", "old"}
  # v starts at its stand-in 0; v -= 0.25 * 2 * (v - 3): 0, 1.5, 2.25.
  losses = [f[0] for f in run_steps(traced, [{}, {}, {}])]
  assert losses == [9.0, 2.25, 0.5625]


def _loop_graph_def():
  graph = tf.Graph()
  with graph.as_default():
    tf.compat.v1.disable_control_flow_v2()
    try:
      out = tf.compat.v1.while_loop(lambda i: i < 10, lambda i: i * 2, [1])
    finally:
      tf.compat.v1.enable_control_flow_v2()
    tf.identity(out, name="out")
  return graph.as_graph_def()


def test_a_loop_of_tensorflow_1_is_no_illegal_cycle(tmp_path):
  path = _write(tmp_path / "loop.pb", _loop_graph_def())
  traced = trace_graph_def(path)
  assert run_steps(traced, [{}])[0] == [16]
  types = skeleton(traced).types
  assert {"Enter", "Merge", "Switch", "NextIteration", "Exit"} <= set(types)
