"""Placed steps with layers that XLA refuses in whole or in part."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tests.testing.slow import slow
from tfplace.variants.keras_step import trace_keras
from tfplace.variants.units.steps import in_units

UNITS = {"compile": "xla", "strategy": "metis", "costs": "estimated"}
GIVEN = {"first": "CPU:0", "refused": "CPU:1", "last": "CPU:0"}


def spline(x):
  """Smooths rows; XLA has a kernel of the solver, but not with pivoting."""
  diagonals = tf.ones((3, 4)) + tf.constant([[0.0], [3.0], [0.0]])
  return tf.transpose(tf.linalg.tridiagonal_solve(diagonals, tf.transpose(x)))


def positions(x):
  """Adds positions up to a length that follows from the data."""
  length = 4 + tf.cast(0.0 * tf.reduce_max(x), tf.int32)
  return x + 0.1 * tf.cast(tf.range(length), tf.float32)


def grouped(x):
  """Adds the means of rows of equal classes."""
  known, group = tf.unique(tf.cast(tf.round(x[:, 0]), tf.int32))
  means = tf.math.unsorted_segment_mean(x, group, tf.size(known))
  return x + tf.gather(means, group)


def randomized(x):
  """Scales by numbers that XLA does not draw."""
  return x * tf.random.stateless_gamma((1, 4), [1, 2], 3.0)


def fixed(x):
  """Takes batches of five only."""
  return tf.reshape(2.0 * tf.reshape(x, (5, 2, 2)), (5, 4))


LAYERS = {
  f.__name__: f for f in (spline, positions, grouped, randomized, fixed)
}


class Refused(keras.layers.Layer):
  def __init__(self, kind):
    super().__init__(name="refused")
    self._function = LAYERS[kind]

  def call(self, x):
    return self._function(x)

  def compute_output_shape(self, input_shape):
    return input_shape


def build(kind):
  keras.utils.set_random_seed(3)
  model = keras.Sequential(
    [
      keras.Input((4,)),
      keras.layers.Dense(4, "tanh", name="first"),
      Refused(kind),
      keras.layers.Dense(2, name="last"),
    ]
  )
  model.compile(at.sgd(), "mse")
  return model


def losses(model):
  rng = np.random.default_rng(5)
  x, y = rng.normal(size=(10, 4)), rng.normal(size=(10, 2))
  options = {"batch_size": 5, "epochs": 2, "shuffle": False, "verbose": 0}
  return model.fit(x, y, **options).history["loss"]


def placed(kind, is_given):
  model = build(kind)
  if is_given:
    return tfplace.place_model(model, placement=GIVEN, compile="xla")
  return tfplace.place_model(model, at.linked(2), batch_size=5, **UNITS)


@pytest.mark.parametrize(
  ("kind", "is_given", "op"),
  [
    ("spline", False, "TridiagonalSolve of layer 'refused': Current"),
    slow("spline", True, "TridiagonalSolve of layer 'refused': Current"),
    ("positions", False, "Range of layer 'refused'.\n"),
    ("positions", True, "Range of layer 'refused': a shape is not known"),
    ("grouped", False, "Unique of layer 'refused'.\n"),
    ("randomized", False, "StatelessRandomGammaV3 of layer 'refused'.\n"),
  ],
)
def test_step_runs_without_what_xla_refuses(kind, is_given, op):
  model = placed(kind, is_given)
  with at.recorded(1) as ran:
    found = losses(model)
  np.testing.assert_allclose(found, losses(build(kind)), rtol=1e-5)
  # The layers before and after are compiled, on both passes.
  assert sum(node.type.endswith("PartitionedCall") for node in ran) >= 3
  assert op in "\n".join((*model.placement.notes, ""))


def test_shapes_are_those_of_the_planned_batch():
  model = placed("fixed", is_given=False)
  with at.recorded(1) as ran:
    losses(model)
  assert sum(node.type.endswith("PartitionedCall") for node in ran) >= 3
  assert not any("XLA" in note for note in model.placement.notes)


def test_refused_unit_of_a_measured_step_is_not_compiled():
  model = build("spline")
  plan = tfplace.plan_model(model, at.linked(2), batch_size=5, **UNITS)
  step = in_units(trace_keras(model, 5), plan.placement.problem.graph)
  bodies = {f.signature.name: f for f in step.graph_def.library.function}
  solvers = [
    node
    for node in step.graph_def.node
    if node.op == "PartitionedCall"
    and any(
      inner.op == "TridiagonalSolve"
      for inner in bodies[node.attr["f"].func.name].node_def
    )
  ]
  assert solvers
  assert not any(node.attr["_XlaMustCompile"].b for node in solvers)
  assert plan.measure(steps=2).step_time_us > 0
