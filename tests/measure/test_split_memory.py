"""A step that does not fit a device's memory runs in microbatches."""

import keras
import numpy as np
import pytest

from tests.testing.slow import SLOW
from tfplace import extraction
from tfplace.core import Problem
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.errors import InfeasibleError
from tfplace.measure.harness import MeasurementHarness
from tfplace.measure.local.devices import WorkerCluster
from tfplace.placers import place
from tfplace.plan import sources
from tfplace.simulate import Simulator

MEMORY_BYTES = 160e6  # of 570 that the step holds, by the simulator


def deep_model():
  """Sixteen layers of 16.8 MB of activations each, and 20 KB of weights."""
  x = inputs = keras.Input((8192, 32), batch_size=16)
  for i in range(16):
    x = keras.layers.Dense(32, activation="relu", name=f"dense_{i}")(x)
  x = keras.layers.GlobalAveragePooling1D()(x)
  model = keras.Model(inputs, keras.layers.Dense(10)(x))
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile("adam", loss, jit_compile=False)
  return model


def traced_problem(model, cluster, microbatches):
  traced = extraction.trace_keras(model, 16, microbatches=microbatches)
  return Problem(sources.op_graph(traced, cluster), cluster), traced


@SLOW
def test_a_step_too_large_runs_with_one_microbatch_in_flight():
  model = deep_model()
  with WorkerCluster(1, memory_limit_bytes=MEMORY_BYTES) as workers:
    cluster = workers.cluster()
    whole, traced_whole = traced_problem(model, cluster, MicrobatchConfig())
    divided, traced = traced_problem(model, cluster, MicrobatchConfig(8, 1))
    with pytest.raises(InfeasibleError, match="too few"):
      place(whole, "single", budget_s=5)
    result = place(divided, "single", budget_s=5)
    alone = np.zeros((1, whole.graph.num_ops), np.int32)
    (held,) = Simulator(whole).evaluate(alone)
    peaks = [
      max(each.peak_memory_bytes.values()) for each in (held, result.evaluation)
    ]
    assert peaks[1] < peaks[0] / 4
    counts = {"warmup": 1, "steps": 2, "traced_steps": 1}
    harness = MeasurementHarness(whole, traced_whole, workers, **counts)
    (failed,) = harness.evaluate(alone)
    assert failed.extra["error_kind"] in ("out_of_memory", "died"), failed.extra
    harness = MeasurementHarness(divided, traced, workers, **counts)
    (ran,) = harness.evaluate([result.placement])
    assert ran.feasible, ran.extra
    # Buffers that TensorFlow uses again in place, the simulator counts twice.
    assert 0 < max(ran.peak_memory_bytes.values()) <= peaks[1]
