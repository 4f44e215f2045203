"""Ops that Grappler rejects are priced by their bytes, the others as ever."""

import functools

import pytest
import tensorflow as tf

from tests.testing.traced_steps import step_of
from tfplace import cost
from tfplace.cost import grappler
from tfplace.errors import ExtractionError
from tfplace.hardware.presets import cluster_preset

op_graph = functools.partial(cost.op_graph, cost_model="grappler")

SIDE = 4096
# A K80's memory bandwidth in bytes per us, by its data sheet: 240 GB/s.
K80_BANDWIDTH = 240e3
RELU_US = 2 * SIDE * SIDE * 4 / K80_BANDWIDTH  # reads and writes a matrix


@pytest.fixture(params=["reading", "measuring"])
def reject(request, monkeypatch):
  """Makes Grappler reject each graph that has an op of a type."""

  def reject(op_type):
    def make_item(graph_def):
      types = {node.op for node in graph_def.node}
      if op_type in types and request.param == "reading":
        raise ExtractionError("Grappler rejects the graph: no such op")
      return own_item(graph_def), types

    def op_times_us(item, hardware):
      item, types = item
      if op_type in types:
        raise ExtractionError("Grappler rejects the graph: no such op")
      return own_times(item, hardware)

    own_item, own_times = grappler.make_item, grappler.op_times_us
    monkeypatch.setattr(grappler, "make_item", make_item)
    monkeypatch.setattr(grappler, "op_times_us", op_times_us)

  return reject


def _times(graph, kind="GPU"):
  return dict(zip(graph.names, graph.time_us[kind].tolist(), strict=True))


def test_a_rejected_op_takes_its_bytes_over_the_bandwidth(reject, caplog):
  def layers(x):
    for i in range(3):
      x = tf.nn.relu(tf.matmul(x, x), name=f"relu_{i}")
    return tf.nn.tanh(x)

  step = step_of(layers, SIDE)
  expected = _times(op_graph(step, cluster_preset("k80x1")))
  reject("Relu")
  graph = op_graph(step, cluster_preset("k80x1"))
  names = [f"relu_{i}" for i in range(3)]
  expected.update(dict.fromkeys(names, RELU_US))
  assert _times(graph) == pytest.approx(expected, rel=1e-9)
  assert graph.extra["rejected_by_grappler"] == names
  (record,) = caplog.records
  assert record.name == "tfplace"
  assert "'relu_0', 'relu_1', 'relu_2'" in record.getMessage()
  assert "no such op" in record.getMessage()


def test_a_rejected_op_of_a_loop_counts_each_time(reject, caplog):
  def loop(x):
    return tf.while_loop(
      lambda i, y: i < 7,
      lambda i, y: (i + 1, tf.nn.relu(y, name="in_loop")),
      [0, x],
      name="loop",
    )[1]

  reject("Relu")
  graph = op_graph(step_of(loop, SIDE), cluster_preset("k80x1"))
  # Counting and comparing scalars is nothing beside the matrix.
  assert _times(graph)["loop"] == pytest.approx(7 * RELU_US, rel=1e-2)
  assert graph.extra["rejected_by_grappler"] == ["loop"]
  (record,) = caplog.records
  assert "in_loop' called by 'loop'" in record.getMessage()
