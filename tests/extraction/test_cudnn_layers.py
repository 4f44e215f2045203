"""Recurrent Keras layers as a process with a GPU traces them, by cuDNN."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.testing.microbatched import compiled
from tfplace.cost import op_graph
from tfplace.errors import ExtractionError
from tfplace.graph.microbatches import VariantConfig
from tfplace.hardware.presets import cluster_preset
from tfplace.variants.keras_step import trace_keras

layers = keras.layers
BATCH, STEPS, FEATURES, UNITS = 8, 12, 5, 16
TOKENS = np.random.default_rng(0).integers(1, 11, (BATCH, STEPS))
CLASSES = TOKENS[:, 0] % 3


@pytest.fixture(autouse=True)
def _with_a_gpu(monkeypatch):
  # `keras.src.backend.tensorflow.rnn` names a function, too.
  module = sys.modules["keras.src.backend.tensorflow.rnn"]
  monkeypatch.setattr(module, "_is_gpu_available", lambda: True)


def recurrent(layer, mask_zero=False):
  tokens = keras.Input((STEPS,), dtype="int32")
  x = layers.Embedding(11, FEATURES, mask_zero=mask_zero)(tokens)
  logits = layers.Dense(3)(layer(x))
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  return compiled(keras.Model(tokens, logits), loss)


def graph_of(layer):
  step = trace_keras(recurrent(layer), sample=(TOKENS, CLASSES))
  return op_graph(step, cluster_preset("v100x1"))


LAYERS = {
  "lstm": lambda: layers.LSTM(UNITS),
  "gru": lambda: layers.GRU(UNITS, dropout=0.1),
  "bidirectional": lambda: layers.Bidirectional(layers.LSTM(UNITS)),
}


@pytest.mark.parametrize("mask_zero", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_examples_stay_apart(name, mask_zero):
  model = recurrent(LAYERS[name](), mask_zero)
  config = VariantConfig(4)
  step = trace_keras(model, sample=(TOKENS, CLASSES), microbatches=config)
  types = [node.op for node in step.graph_def.node]
  layers_at_once = 2 if name == "bidirectional" else 1
  assert types.count("CudnnRNNV3") == 4 * layers_at_once
  assert types.count("CudnnRNNBackpropV3") == 4 * layers_at_once


class TimeIsTheBatch(layers.Layer):
  """Runs a layer along the examples of the batch."""

  def __init__(self):
    super().__init__(name="own")
    self.lstm = layers.LSTM(UNITS, return_sequences=True)

  def call(self, x):
    return tf.transpose(self.lstm(tf.transpose(x, (1, 0, 2))), (1, 0, 2))


def test_a_layer_along_the_batch_is_refused():
  inner = keras.Sequential([TimeIsTheBatch(), layers.Flatten()])
  config = VariantConfig(4)
  with pytest.raises(ExtractionError, match="mixes the examples"):
    trace_keras(recurrent(inner), sample=(TOKENS, CLASSES), microbatches=config)


@pytest.mark.parametrize(("name", "gates"), [("lstm", 4), ("gru", 3)])
def test_layers_are_costed_and_placed_as_one_kernel(name, gates):
  graph = graph_of(LAYERS[name]())
  forward = graph.types.index("CudnnRNNV3")
  gradient = graph.types.index("CudnnRNNBackpropV3")
  for op, factor in ((forward, 1), (gradient, 2)):
    # Peak of a V100: 15.7 TFLOP/s.
    flops = 2 * BATCH * STEPS * (FEATURES + UNITS) * gates * UNITS
    assert graph.peak_us["GPU"][op] == pytest.approx(
      factor * flops / 15.7e6, rel=0.01
    )
    # A time step of any size takes tens of microseconds.
    assert 10 * STEPS < graph.time_us["GPU"][op] < 100 * STEPS
    assert not np.isfinite(graph.time_us["CPU"][op])
  assert graph.colocation[forward] == graph.colocation[gradient] >= 0
  assert "unknown_shapes" not in graph.extra


def test_what_layers_keep_for_their_gradient_counts():
  graph = graph_of(LAYERS["lstm"]())
  forward = graph.types.index("CudnnRNNV3")
  edges = zip(graph.edge_src, graph.edge_output, graph.edge_dst, strict=True)
  kept = graph.types.index("CudnnRNNBackpropV3")
  outputs = {o for src, o, dst in edges if (src, dst) == (forward, kept)}
  sizes = graph.output_bytes[graph.output_offsets[forward] :]
  assert 3 in outputs
  # At least the gates of all time steps.
  assert sizes[3] >= 4 * BATCH * STEPS * 4 * UNITS
