import numpy as np
import pytest
import tensorflow as tf

from tfplace import models
from tfplace.cost import grappler, op_graph, sizes
from tfplace.errors import ExtractionError, ProblemError
from tfplace.extraction.traced import FeedSpec, TracedStep
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.problem import Problem
from tfplace.hardware.presets import cluster_preset
from tfplace.variants.keras_step import trace_keras

# A K80's peak and memory bandwidth in flop and bytes per us, by its data
# sheet: 13 * 192 cores of 875 MHz, two flops each; 240 GB/s. The host's as
# Grappler counts: 40 cores of 2200 MHz, one flop each; 136.5 GB/s.
K80_PEAK, K80_BANDWIDTH = 13 * 192 * 875 * 2.0, 240e3
HOST_PEAK, HOST_BANDWIDTH = 40 * 2200.0, 136.5e3


def _traced(build, shapes=None):
  """A step from a function that adds ops to a graph and returns a fetch."""
  with tf.Graph().as_default() as graph:
    fetch = build()
  graph_def = graph.as_graph_def()
  feeds = {
    name: FeedSpec(f"{name}:0", shape, tf.float32)
    for name, shape in (shapes or {}).items()
  }
  return TracedStep("g", graph_def, feeds, (fetch.name,), (), {}, False)


def _placeholder(shape, name="x"):
  return tf.compat.v1.placeholder(tf.float32, shape, name=name)


def _matmul():
  handle = tf.raw_ops.VarHandleOp(
    dtype=tf.float32, shape=[512, 1024], shared_name="w", name="w"
  )
  kernel = tf.raw_ops.ReadVariableOp(
    resource=handle, dtype=tf.float32, name="read"
  )
  return tf.matmul(_placeholder([256, 512]), kernel, name="product")


def _op(graph, name):
  i = graph.index[name]
  outputs = slice(*graph.output_offsets[i : i + 2])
  return {
    "time_us": {k: v[i] for k, v in graph.time_us.items()},
    "output_bytes": graph.output_bytes[outputs].tolist(),
    "persistent_bytes": graph.persistent_bytes[i],
  }


def test_a_matmul_takes_flops_over_peak_and_its_bytes():
  graph = op_graph(
    _traced(_matmul), cluster_preset("k80x2"), cost_model="grappler"
  )
  flops = 2 * 256 * 512 * 1024
  num_bytes = 4 * (256 * 512 + 512 * 1024 + 256 * 1024)
  times = _op(graph, "product")["time_us"]
  assert times["GPU"] == pytest.approx(
    flops / K80_PEAK + num_bytes / K80_BANDWIDTH, rel=1e-3
  )
  assert times["CPU"] == pytest.approx(
    flops / HOST_PEAK + num_bytes / HOST_BANDWIDTH, rel=1e-3
  )


def test_variables_persist_and_reads_have_the_variables_size():
  graph = op_graph(_traced(_matmul), cluster_preset("k80x2"))
  size = 512 * 1024 * 4
  handle, read = _op(graph, "w"), _op(graph, "read")
  assert (handle["persistent_bytes"], handle["output_bytes"]) == (size, [0.0])
  assert (read["persistent_bytes"], read["output_bytes"]) == (0.0, [size])
  assert handle["time_us"] == read["time_us"] == {"GPU": 0.0, "CPU": 0.0}
  assert _op(graph, "product")["output_bytes"] == [256 * 1024 * 4]


def test_every_output_has_its_own_size_and_type():
  def build():
    values, _ = tf.math.top_k(_placeholder([6, 10]), 3, name="top")
    tf.strings.as_string(values, name="text")
    return tf.split(_placeholder([6, 10], "y"), [1, 5], name="parts")[0]

  graph = op_graph(_traced(build), cluster_preset("k80x1"))
  assert _op(graph, "top")["output_bytes"] == [6 * 3 * 4, 6 * 3 * 4]
  assert _op(graph, "parts")["output_bytes"] == [1 * 10 * 4, 5 * 10 * 4]
  assert _op(graph, "text")["output_bytes"] == [6 * 3 * 24]


def test_shapes_that_grappler_cannot_infer_are_told_to_it():
  def build():
    # A permutation by arithmetic, as the softmax of a middle axis has it.
    order = tf.concat([tf.range(1, 2), [0], tf.range(2, 3)], 0)
    moved = tf.transpose(_placeholder([64, 512, 128]), order)
    return tf.tanh(moved, name="tanh")

  graph = op_graph(_traced(build), cluster_preset("k80x1"))
  num_bytes = 2 * 4 * 64 * 512 * 128
  assert _op(graph, "tanh")["time_us"]["GPU"] > num_bytes / K80_BANDWIDTH
  assert "unknown_shapes" not in graph.extra


def test_sizes_that_depend_on_values_count_as_one_and_are_listed():
  def build():
    return tf.where(_placeholder([100]) > 0, name="where")

  graph = op_graph(_traced(build), cluster_preset("k80x1"))
  assert graph.extra["unknown_shapes"] == ["where"]
  assert _op(graph, "where")["output_bytes"] == [8.0]  # 1 x 1 int64


def test_feeds_give_placeholders_their_shapes():
  traced = _traced(
    lambda: tf.tanh(_placeholder([None, 10]), name="tanh"), {"x": (32, 10)}
  )
  graph = op_graph(traced, cluster_preset("k80x1"))
  assert _op(graph, "tanh")["output_bytes"] == [32 * 10 * 4]


def test_a_graph_that_tensorflow_rejects_is_refused():
  traced = _traced(_matmul)
  node = next(n for n in traced.graph_def.node if n.name == "product")
  node.attr["transpose_a"].b = True
  with pytest.raises(ExtractionError, match=r"'g'.*rejects.*256 and 512"):
    op_graph(traced, cluster_preset("k80x1"))


def _cluster(*devices):
  return Cluster("c", tuple(Device(*device) for device in devices))


def test_devices_that_say_nothing_get_default_hardware():
  cluster = _cluster(("/device:GPU:0", "GPU"), ("/device:CPU:0", "CPU"))
  graph = op_graph(_traced(_matmul), cluster)
  preset = op_graph(_traced(_matmul), cluster_preset("v100x1"))
  for kind in ("GPU", "CPU"):
    np.testing.assert_array_equal(graph.time_us[kind], preset.time_us[kind])


@pytest.mark.parametrize(
  ("hardware", "message"),
  [
    ({"type": "TPU"}, "hardware of type 'TPU'; choose from CPU, GPU"),
    ({"type": "CPU", "frequency": 0}, "frequency .* above 0, not 0"),
    ({"speed": 1}, "'d'.*not understood"),
    ("fast", "'d'.*not understood"),
    (
      {"type": "GPU", "frequency": 1, "num_cores": 1, "bandwidth": 1},
      "lacks 'architecture'",
    ),
  ],
)
def test_hardware_that_makes_no_sense_is_refused(hardware, message):
  cluster = _cluster(("d", "X", 1e9, 0.0, {"hardware": hardware}))
  with pytest.raises(ProblemError, match=message):
    op_graph(_traced(_matmul), cluster)


def test_one_kind_has_one_hardware():
  k80, v100 = (
    cluster_preset(f"{n}x1").devices[0].extra for n in ("k80", "v100")
  )
  cluster = _cluster(("a", "GPU", 1e9, 0.0, k80), ("b", "GPU", 1e9, 0.0, v100))
  with pytest.raises(ProblemError, match=r"'a' and 'b'.*'GPU'"):
    op_graph(_traced(_matmul), cluster)


@pytest.fixture(scope="module")
def training_step():
  zoo = models.build("nmt", batch_size=4, units=16, vocabulary=50, length=4)
  traced = trace_keras(zoo.model, sample=zoo.sample(0))
  return zoo, traced, op_graph(traced, cluster_preset("k80x2"))


def test_a_models_training_step_becomes_a_problem(training_step):
  zoo, traced, graph = training_step
  assert graph.num_ops == len(traced.graph_def.node)
  assert "unknown_shapes" not in graph.extra
  assert Problem(graph, cluster_preset("k80x2")).lower_bound_us > 0
  # All variables are there: weights, optimizer slots, metrics.
  weights = sum(
    v.value.dtype.size * int(np.prod(v.shape)) for v in zoo.model.variables
  )
  assert graph.persistent_bytes.sum() >= weights


def _is_unknown(shape):
  return shape.unknown_rank or any(d.size < 0 for d in shape.dim)


def test_an_op_costs_what_grappler_says_of_it_in_the_whole_graph(training_step):
  """The estimator sees one op of each class, the reference all of them."""
  _, traced, _ = training_step
  graph = op_graph(traced, cluster_preset("k80x2"), cost_model="grappler")
  described = grappler.described_by_kind(cluster_preset("k80x2"))
  properties = described["GPU"].properties
  whole = grappler.make_item(sizes.with_feed_shapes(traced))
  expected = grappler.op_times_us(whole, properties)
  lacking = {  # what Grappler does not infer it is told
    name
    for name, found in whole.GetOpProperties().items()
    if any(_is_unknown(tensor.shape) for tensor in found)
  }
  compared = 0
  for node in traced.graph_def.node:
    read = {text.partition(":")[0] for text in node.input}
    if lacking.isdisjoint(read | {node.name}):
      time_us = graph.time_us["GPU"][graph.index[node.name]]
      compared += time_us > 0
      assert time_us == pytest.approx(
        expected.get(node.name, 0.0), rel=1e-4, abs=1e-4
      ), node.name
  assert compared > 100
