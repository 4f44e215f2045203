"""A step that recomputes activations computes the same, in less memory."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.testing import layer_cases
from tests.testing.layer_cases import chain
from tfplace import cluster_preset, place
from tfplace.cost import op_graph
from tfplace.errors import ExtractionError
from tfplace.extraction.traced import with_initializers
from tfplace.graph import Problem
from tfplace.graph.microbatches import VariantConfig, microbatches_of
from tfplace.graph.recompute import is_clone, original_name, recompute_config
from tfplace.variants.keras_step import trace_keras
from tfplace.variants.recompute import segments

STEPS = 5
# (model, microbatches)
CASES = [
  ("noises", 1),
  ("nested_subclassed", 1),
  ("mixed_float16", 1),
  ("batch_norm", 2),
  ("siamese", 2),
]


def traced(model, recompute="none", microbatches=1, sample=None):
  config = VariantConfig(
    microbatches,
    allow_batch_statistics=True,
    recompute=recompute_config(recompute),
  )
  return trace_keras(model, 8, sample=sample, microbatches=config)


@pytest.fixture
def all_are_large(monkeypatch):
  """Tensors of small models are recomputed, too."""
  monkeypatch.setattr(segments, "_SMALL_BYTES", 0)


def transformer(depth=2, width=64):
  tokens = keras.Input((8,), dtype="int32")
  x = layers.Embedding(50, width)(tokens)
  for i in range(depth):
    y = layers.LayerNormalization()(x)
    attend = layers.MultiHeadAttention(2, width // 2, name=f"attend_{i}")
    x = x + attend(y, y)
    y = layers.Dense(2 * width, "gelu", name=f"wide_{i}")(x)
    x = x + layers.Dense(width)(y)
  model = keras.Model(tokens, layers.Dense(5)(x))
  model.compile("adam", "mse", jit_compile=False)
  return model


def run(step):
  """Runs some batches; returns all fetches, and the variables at the end."""
  rng = np.random.default_rng(0)
  batches = [
    {
      feed.tensor: (
        rng.random(feed.shape).astype(feed.dtype.as_numpy_dtype)
        if feed.dtype.is_floating
        else rng.integers(0, 5, feed.shape).astype(feed.dtype.as_numpy_dtype)
      )
      for feed in step.feeds.values()
    }
    for _ in range(STEPS)
  ]
  prepared = with_initializers(step)
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(prepared.graph_def, name="")
    variables = [
      tf.raw_ops.ReadVariableOp(
        resource=graph.get_tensor_by_name(f"{spec.node}:0"), dtype=spec.dtype
      )
      for spec in step.variables.values()
    ]
    with tf.compat.v1.Session(graph=graph) as session:
      session.run(list(prepared.assignments), dict(prepared.feeds))
      fetched = [list(step.fetches), list(step.targets)]
      results = [session.run(fetched, batch)[0] for batch in batches]
      return results, session.run(variables)


def clones(step):
  return [node for node in step.graph_def.node if is_clone(node.name)]


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize(("name", "microbatches"), CASES)
def test_steps_equal_those_that_keep_activations(name, microbatches):
  """Loss, metrics and all variables: random seeds are not drawn again."""
  model, batch = layer_cases.build(name)
  kept, again = (traced(model, x, microbatches, batch) for x in ("none", "all"))
  check_clones(again)
  assert list(kept.variables) == list(again.variables)
  expected, weights = run(kept)
  results, new_weights = run(again)
  for found, known in zip(results, expected, strict=True):
    for a, b in zip(found, known, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6)
  for a, b in zip(new_weights, weights, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def check_clones(step):
  """No op with state is cloned, and roots of clones wait for an op."""
  found = {node.name: node for node in clones(step)}
  assert found
  names = {node.name for node in step.graph_def.node}
  for node in found.values():
    assert original_name(node.name) in names
    assert node.op not in ("ReadVariableOp", "RandomUniform", "Const")
    inside = any(text.split(":")[0] in found for text in node.input)
    controls = [text[1:] for text in node.input if text.startswith("^")]
    assert inside or controls


def test_the_names_of_a_step_tell_what_it_recomputes():
  model = transformer()
  step = traced(model, "all", 2)
  names = [node.name for node in step.graph_def.node]
  config = microbatches_of(names)
  assert config.recompute.ops
  config = VariantConfig(2, None, True, config.recompute)
  again = trace_keras(model, 8, microbatches=config)
  assert [node.name for node in again.graph_def.node] == names


def test_less_memory_is_held_and_more_time_is_spent():
  model = transformer(depth=3)
  cluster = cluster_preset("v100x1")
  peak, time_us = [], []
  for what in ("none", ["attend_*", "wide_*"]):
    step = traced(model, what)
    problem = Problem(op_graph(step, cluster), cluster)
    held = problem.graph.persistent_bytes.sum()
    found = place(problem, "single").evaluation
    peak.append(max(found.peak_memory_bytes.values()) - held)
    time_us.append(found.step_time_us)
  assert peak[1] < 0.8 * peak[0]
  assert time_us[0] < time_us[1] < 1.4 * time_us[0]


def test_layers_of_a_nested_list_are_one_segment():
  stages = [
    stage
    for _ in range(3)
    for stage in (
      layers.Conv2D(4, 3, padding="same", use_bias=False),
      layers.BatchNormalization(),
      layers.ReLU(),
    )
  ]
  model = chain((8, 8, 3), *stages)
  model.compile("adam", "mse", jit_compile=False)
  step = traced(model, [["batch_normalization*", "re_lu*"]])
  kinds = {node.op for node in clones(step)}
  assert "Relu" in kinds and "Conv2D" not in kinds
  scopes = {node.name.split("/")[0] for node in clones(step)}
  assert len(scopes) == 3  # one per pair: convolutions lie between them


def test_clones_belong_to_the_layer_of_the_op_they_repeat():
  step = traced(transformer(), ["wide_1"])
  assert clones(step)
  for node in clones(step):
    assert step.layers[node.name][0] == "wide_1"


def test_metrics_read_the_prediction_and_not_its_clone():
  stages = [layers.Dense(512, "tanh", name=f"wide_{i}") for i in range(3)]
  model = chain((64,), *stages)
  model.compile("sgd", "mse", metrics=["mae"])
  step = traced(model, ["wide_2"])
  readers = [
    node.name
    for node in step.graph_def.node
    if any(is_clone(text) for text in node.input) and not is_clone(node.name)
  ]
  assert readers and all("gradient_tape/" in name for name in readers)


@pytest.mark.usefixtures("all_are_large")
def test_loops_run_once():
  model, batch = layer_cases.build("mixed_float16")  # with an LSTM
  step = traced(model, "all", sample=batch)
  kept = {node.op for node in step.graph_def.node}
  cloned = {node.op for node in clones(step)}
  assert "While" in kept and cloned and "While" not in cloned


@pytest.mark.parametrize(
  "recompute, says",
  [
    (["nothing_*"], "'nothing_\\*', which is no layer of model"),
    (["wide_l"], "did you mean 'wide_"),
    ("some", "recompute is 'some'; it must be 'none', 'all'"),
    (3, "recompute is 3"),
    ([[]], "recompute is \\[\\[\\]\\]"),
  ],
)
def test_errors_name_the_value_and_a_way_out(recompute, says):
  with pytest.raises(ExtractionError, match=says):
    traced(transformer(), recompute)
