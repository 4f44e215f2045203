import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.testing.traced_steps import step_of
from tfplace.cost import op_graph
from tfplace.hardware.presets import cluster_preset
from tfplace.variants.keras_step import trace_keras

SIDE = 1024
MATRIX_BYTES = SIDE * SIDE * 4


def _costs(function):
  return op_graph(
    step_of(function, SIDE), cluster_preset("k80x1"), cost_model="grappler"
  )


def _of_type(graph, *types):
  (at,) = (i for i, t in enumerate(graph.types) if t in types)
  return at


def _matmul_us():
  graph = _costs(lambda x: tf.matmul(x, x))
  return graph.time_us["GPU"][_of_type(graph, "MatMul")]


WHILE = ("While", "StatelessWhile")
IF = ("If", "StatelessIf")


def _loop(limit, body=lambda x: tf.matmul(x, x), start=0):
  return lambda x: tf.while_loop(
    lambda i, y: i < limit, lambda i, y: (i + 1, body(y)), [start, x]
  )[1]


@pytest.mark.parametrize(("start", "limit"), [(0, 7), (3, 7)])
def test_a_loop_takes_its_body_times_its_iterations(start, limit):
  graph = _costs(_loop(limit, start=start))
  time_us = graph.time_us["GPU"][_of_type(graph, *WHILE)]
  # Counting and comparing scalars is nothing beside the product.
  assert time_us == pytest.approx((limit - start) * _matmul_us(), rel=1e-3)
  assert "unknown_trip_counts" not in graph.extra


def test_an_iteration_takes_at_least_its_launches():
  times_us = []
  for extra_ops in (0, 10):

    def body(x, extra_ops=extra_ops):
      for _ in range(extra_ops):
        x = x[:, ::-1]
      return x

    graph = _costs(lambda x: _loop(5, body)(x[:2, :2]))
    times_us.append(graph.time_us["GPU"][_of_type(graph, *WHILE)])
  # TensorFlow's executor takes a few microseconds for each.
  assert 5 * 10 * 3 < times_us[1] - times_us[0] < 5 * 10 * 12


def test_a_loop_of_unknown_length_counts_once_and_is_listed():
  def until_large(x):
    return tf.while_loop(
      lambda y: tf.reduce_sum(y) < 1e3, lambda y: tf.matmul(y, y), [x]
    )

  graph = _costs(until_large)
  at = _of_type(graph, *WHILE)
  assert graph.extra["unknown_trip_counts"] == [graph.names[at]]
  assert graph.time_us["GPU"][at] >= _matmul_us()
  assert graph.time_us["GPU"][at] < 2 * _matmul_us()


def test_a_branch_takes_as_long_as_its_slowest():
  def branch(x):
    return tf.cond(
      x[0, 0] > 0,
      lambda: tf.matmul(tf.matmul(x, x), x),
      lambda: tf.matmul(x, x),
    )

  graph = _costs(branch)
  time_us = graph.time_us["GPU"][_of_type(graph, *IF)]
  assert time_us == pytest.approx(2 * _matmul_us(), rel=1e-3)


def test_a_bodys_tensors_are_temporary_bytes_of_the_call():
  def body(y):
    # Three matrices at most: a and b while c is made.
    a = tf.matmul(y, y)
    b = tf.matmul(a, y)
    return tf.matmul(a, b)

  graph = _costs(_loop(7, body))
  temp = graph.temp_bytes[_of_type(graph, *WHILE)]
  assert 3 * MATRIX_BYTES <= temp < 3 * MATRIX_BYTES + 1000


def test_a_recurrent_layers_steps_count_forward_and_backward():
  inputs = keras.Input((12, 64))
  outputs = keras.layers.GRU(64)(inputs)
  model = keras.Model(inputs, outputs)
  model.compile("sgd", "mse", jit_compile=False)
  graph = op_graph(trace_keras(model, 32), cluster_preset("k80x1"))
  assert not {"unknown_trip_counts", "unknown_shapes"} & set(graph.extra)
  loops = [i for i, t in enumerate(graph.types) if t in WHILE]
  # [32, 64] x [64, 192] twice and 12 times forward, twice that backward.
  flops = 12 * 2 * 2 * 32 * 64 * 192
  peak = 13 * 192 * 875 * 2.0  # flops per us of a K80
  forward, backward = sorted(graph.time_us["GPU"][loops])
  assert forward > flops / peak
  assert backward > 2 * flops / peak
  assert np.isfinite(backward)
