"""A real Keras model, traced, costed, split over workers, and timed."""

import keras
import numpy as np
import pytest

from tfplace import cost
from tfplace.graph.problem import Problem
from tfplace.measure.cluster import OpenCluster
from tfplace.plan.live_step import guesses
from tfplace.simulate import Simulator
from tfplace.variants.keras_step import trace_keras

BATCH, WIDTH = 4, 8


def two_towers():
  keras.utils.set_random_seed(0)
  inputs = keras.Input((WIDTH,))
  ends = []
  for tower in ("left", "right"):
    x = keras.layers.Dense(WIDTH, activation="relu", name=tower)(inputs)
    ends.append(keras.layers.BatchNormalization(name=f"{tower}_norm")(x))
  outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(ends))
  model = keras.Model(inputs, outputs)
  model.compile("adam", "mse", jit_compile=False)
  return model


@pytest.fixture(scope="module")
def step():
  rng = np.random.default_rng(0)
  x = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
  y = rng.standard_normal((BATCH, 1)).astype(np.float32)
  model = two_towers()
  traced = trace_keras(model, BATCH, sample=(x, y))
  losses = []
  for _ in range(9):
    model.reset_metrics()  # else a running mean is returned
    losses.append(float(model.train_on_batch(x, y)))
  return traced, losses


def test_split_training_has_keras_losses_and_a_full_profile(step, workers):
  traced, keras_losses = step
  live = OpenCluster(workers.cluster(), workers)
  estimated = Problem(cost.op_graph(traced, live.cluster), live.cluster)
  running = live.step(traced, steps=3, traced_steps=2)
  problem = running.profiled(estimated, guesses)
  assert not np.array_equal(problem.time_us, estimated.time_us)
  # Scattered at random: the numbers may not depend on where ops run.
  rng = np.random.default_rng(1)
  groups = rng.integers(0, 2, problem.num_groups).astype(np.int32)
  scattered = groups[problem.group_of][None]
  harness = live.harness(problem, traced, warmup=3, steps=3, traced_steps=1)
  (evaluation,) = harness.evaluate(scattered)
  assert "error" not in evaluation.extra
  loss = traced.fetches[0]
  # Fetched are the first step, and the last after 3 + 3 + 1 others.
  first, last = (evaluation.extra[k][loss] for k in ("fetches", "last_fetches"))
  assert first == pytest.approx(keras_losses[0], rel=1e-5)
  assert last == pytest.approx(keras_losses[8], rel=1e-5)
  # TensorFlow copies tiny constants to each device that reads them.
  seen, graph = harness.traces[0].ops, problem.graph
  unseen = [i for i, name in enumerate(graph.names) if name not in seen]
  assert {graph.types[i] for i in unseen} <= {"Const"}
  (predicted,) = Simulator(problem).evaluate(scattered)
  assert evaluation.bytes_moved == pytest.approx(predicted.bytes_moved)
