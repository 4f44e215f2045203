"""A step that recomputes activations computes the same, in less memory."""

import functools

import keras
import numpy as np
import pytest
from keras import layers

from tfplace import cluster_preset, largest_batch, place
from tfplace.core import Problem
from tfplace.core.microbatches import MicrobatchConfig, microbatches_of
from tfplace.core.recompute import is_clone, original_name, recompute_config
from tfplace.errors import ExtractionError
from tfplace.extraction import run_steps, trace_keras
from tfplace.plan.sources import extract, op_graph

BATCH, STEPS, WIDTH = 8, 10, 64


def transformer(blocks=2):
  tokens = keras.Input((16,), dtype="int32")
  x = layers.Embedding(50, WIDTH, mask_zero=True)(tokens)
  for i in range(blocks):
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(2, 32, dropout=0.1, name=f"attend_{i}")(y, y)
    x = x + layers.Dropout(0.2)(y)
    y = layers.Dense(2 * WIDTH, activation="gelu", name=f"wide_{i}")(x)
    x = x + layers.Dense(WIDTH)(y)
  return keras.Model(tokens, layers.Dense(5)(x))


def convolutions():
  x = image = keras.Input((16, 16, 3))
  for _ in range(4):
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
  x = layers.GlobalAveragePooling2D()(x)
  return keras.Model(image, layers.Dense(5)(x))


def recurrent():
  x = series = keras.Input((9, 6))
  x = layers.LSTM(WIDTH, return_sequences=True)(layers.Masking()(x))
  x = layers.Dense(WIDTH, activation="tanh")(x)
  x = layers.GRU(WIDTH, return_sequences=True)(x)
  return keras.Model(series, layers.Dense(5)(x))


def shared():
  first, second = keras.Input((WIDTH,)), keras.Input((WIDTH,))
  tower = keras.Sequential(
    [layers.Dense(4 * WIDTH, activation="relu") for _ in range(3)]
  )
  x = layers.Concatenate()([tower(first), tower(second)])
  return keras.Model([first, second], layers.Dense(5)(x))


class Block(layers.Layer):
  """What `keras.RematScope` can recompute in a graph: `call(x)` alone."""

  def build(self, shape):
    self.wide = self.add_weight(shape=(shape[-1], 4 * WIDTH), name="wide")

  def call(self, x):
    return keras.ops.tanh(keras.ops.matmul(x, self.wide))


def rematerialized():
  x = start = keras.Input((WIDTH,))
  with keras.RematScope(mode="full"):
    for _ in range(2):
      x = Block()(x)
  for _ in range(3):
    x = layers.Dense(WIDTH, activation="gelu")(x)
  return keras.Model(start, layers.Dense(5)(x))


def mixed_precision():
  policy = keras.mixed_precision.dtype_policy()
  keras.mixed_precision.set_global_policy("mixed_float16")
  try:
    return transformer(blocks=1)
  finally:
    keras.mixed_precision.set_global_policy(policy)


MODELS = {
  model.__name__: model
  for model in (
    transformer,
    convolutions,
    recurrent,
    shared,
    rematerialized,
    mixed_precision,
  )
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
  """One of `MODELS`, whose steps are traced once."""
  keras.utils.set_random_seed(0)
  found = MODELS[request.param]()
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  found.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
  return found


@functools.lru_cache(4)  # the steps of one of `MODELS`
def traced_once(model, recompute, microbatches):
  return traced(model, recompute, microbatches)


def traced(model, recompute="none", microbatches=1):
  config = MicrobatchConfig(
    microbatches,
    allow_batch_statistics=True,
    recompute=recompute_config(recompute),
  )
  return trace_keras(model, BATCH, microbatches=config)


def batches(step, count=STEPS):
  rng = np.random.default_rng(0)
  return [
    {
      feed.tensor: (
        rng.random(feed.shape).astype(feed.dtype.as_numpy_dtype)
        if feed.dtype.is_floating
        else rng.integers(0, 5, feed.shape).astype(feed.dtype.as_numpy_dtype)
      )
      for feed in step.feeds.values()
    }
    for _ in range(count)
  ]


def clones(step):
  return [node for node in step.graph_def.node if is_clone(node.name)]


@pytest.mark.parametrize("microbatches", [1, 2])
def test_ten_steps_equal_those_that_keep_activations(model, microbatches):
  """Loss and metrics, with dropout: random seeds are read, not drawn again."""
  kept = traced(model, microbatches=microbatches)
  again = traced_once(model, "all", microbatches)
  assert clones(again)
  data = batches(kept)
  expected = run_steps(kept, data)
  for found, known in zip(run_steps(again, data), expected, strict=True):
    for a, b in zip(found, known, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6)


def test_nothing_with_state_is_cloned_and_roots_wait_for_a_gradient(model):
  step = traced_once(model, "all", 1)
  found = {node.name: node for node in clones(step)}
  names = {node.name for node in step.graph_def.node}
  for node in found.values():
    assert original_name(node.name) in names
    assert node.op not in ("ReadVariableOp", "RandomUniform", "Const")
    inside = any(text.split(":")[0] in found for text in node.input)
    controls = [text[1:] for text in node.input if text.startswith("^")]
    assert inside or controls


def test_the_names_of_a_step_tell_what_it_recomputes(model):
  step = traced_once(model, "all", 2)
  names = [node.name for node in step.graph_def.node]
  config = microbatches_of(names)
  again = trace_keras(
    model,
    BATCH,
    microbatches=MicrobatchConfig(2, None, True, config.recompute),
  )
  assert [node.name for node in again.graph_def.node] == names


@pytest.mark.parametrize("recompute", ["all", ["attend_*", "wide_*"]])
def test_less_memory_is_held_and_more_time_is_spent(recompute):
  keras.utils.set_random_seed(0)
  model = transformer()
  model.compile("adam", "mse")
  cluster = cluster_preset("v100x1")
  peak, time_us = [], []
  for what in ("none", recompute):
    step = traced(model, what)
    problem = Problem(op_graph(step, cluster), cluster)
    held = problem.graph.persistent_bytes.sum()
    found = place(problem, "single").evaluation
    peak.append(max(found.peak_memory_bytes.values()) - held)
    time_us.append(found.step_time_us)
  assert peak[1] < 0.8 * peak[0]
  assert time_us[0] < time_us[1] < 1.4 * time_us[0]


def test_layers_of_a_nested_list_are_one_segment():
  model = convolutions()
  model.compile("sgd", "mse")
  step = traced(model, [["batch_normalization*", "re_lu*"]])
  kinds = {node.op for node in clones(step)}
  assert "Relu" in kinds and "Conv2D" not in kinds
  scopes = {node.name.split("/")[0] for node in clones(step)}
  assert len(scopes) == 4  # one per pair: convolutions lie between them


def test_clones_belong_to_the_layer_of_the_op_they_repeat():
  model = transformer()
  model.compile("sgd", "mse")
  step = traced(model, ["wide_1"])
  assert clones(step)
  for node in clones(step):
    assert step.layers[node.name][0] == "wide_1"


def test_metrics_read_the_prediction_and_not_its_clone():
  x = start = keras.Input((WIDTH,))
  for i in range(3):
    x = layers.Dense(8 * WIDTH, activation="tanh", name=f"wide_{i}")(x)
  model = keras.Model(start, x)
  model.compile("sgd", "mse", metrics=["mae"])
  step = traced(model, ["wide_2"])
  readers = [
    node.name
    for node in step.graph_def.node
    if any(is_clone(text) for text in node.input) and not is_clone(node.name)
  ]
  assert readers and all("gradient_tape/" in name for name in readers)


def test_loops_run_once():
  model = recurrent()
  model.compile("sgd", "mse")
  step = traced(model, "all")
  kept = {node.op for node in step.graph_def.node}
  assert "While" in kept
  assert "While" not in {node.op for node in clones(step)}


@pytest.mark.parametrize(
  "recompute, says",
  [
    (["nothing_*"], "'nothing_\\*', which is no layer of model"),
    (["wide_l"], "did you mean 'wide_"),
    ("some", "recompute is 'some'; it must be 'none', 'all'"),
    (3, "recompute is 3"),
    ([], "recompute is \\[\\]"),
    ([[]], "recompute is \\[\\[\\]\\]"),
    ([1], "recompute is \\[1\\]"),
  ],
)
def test_errors_name_the_value_and_a_way_out(recompute, says):
  model = transformer()
  model.compile("sgd", "mse")
  with pytest.raises(ExtractionError, match=says):
    traced(model, recompute)


def test_only_training_steps_recompute():
  model = transformer()
  with pytest.raises(ExtractionError, match="only a training step recomputes"):
    config = MicrobatchConfig(recompute=recompute_config("all"))
    trace_keras(model, BATCH, training=False, microbatches=config)
  for choice in (extract, largest_batch):
    with pytest.raises(ExtractionError, match="'auto', which planning chooses"):
      choice("rnnlm_2", "v100x1", recompute="auto")
