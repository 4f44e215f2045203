import collections
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.testing.slow import SLOW
from tfplace import cluster_preset, extract, models
from tfplace.errors import ExtractionError
from tfplace.graph import Problem
from tfplace.plan.source import open_source

WORDS = {"batch_size": 4, "units": 16, "vocabulary": 50, "length": 4}
SEGMENTS = {"layers": 1, "heads": 2, "feed_forward": 24, "segments": 2}
IMAGES = {"batch_size": 4, "image_size": 32, "classes": 5}
STACKS = {"stacks": 1, "layers_per_stack": 3, "channels": 4, "skip_channels": 8}
TINY = {
  "inception_v3": {"batch_size": 2, "image_size": 75, "classes": 10},
  "nmt": WORDS,
  "gnmt": {**WORDS, "layers": 3},
  "rnnlm": WORDS,
  "transformer_xl": {**WORDS, **SEGMENTS, "batch_size": 2, "memory": 3},
  "nasnet": {**IMAGES, "num_blocks": 1, "penultimate_filters": 96},
  "amoebanet_d": {**IMAGES, "cells": 1, "filters": 16},
  "wavenet": {**STACKS, "batch_size": 2, "samples": 20},
}


@pytest.fixture(
  scope="module", params=("nmt", "rnnlm", "transformer_xl", "wavenet")
)
def tiny(request):
  return models.build(request.param, **TINY[request.param])


def test_twenty_steps_bring_the_loss_of_one_batch_down(tiny):
  x, y = tiny.sample(0)
  losses = [float(tiny.model.train_on_batch(x, y)) for _ in range(20)]
  assert np.isfinite(losses).all()
  assert losses[-1] < losses[0]


@SLOW
def test_the_training_step_of_a_model_of_cells_extracts_whole():
  """NASNet, of the same cells, takes longer."""
  zoo = models.build("amoebanet_d", **TINY["amoebanet_d"])
  options = {"batch_size": zoo.batch_size, "compile": "none"}
  graph = extract(zoo.model, "p100x2", **options)
  count = collections.Counter(graph.types)
  weights = zoo.model.trainable_weights
  # Each convolution has a gradient for its kernel, each weight an update.
  kernels = [w for w in weights if len(w.shape) == 4]
  assert count["Conv2DBackpropFilter"] >= len(kernels) > 10
  updates = sum(n for type_, n in count.items() if type_.startswith("Assign"))
  assert updates >= len(weights)
  problem = Problem(graph, cluster_preset("p100x2"))
  assert (problem.fastest_us > 0).mean() > 0.1


def test_sample_has_the_batch_size_and_depends_on_the_seed_only(tiny):
  first, again, other = (tf.nest.flatten(tiny.sample(s)) for s in (3, 3, 4))
  for a, b in zip(first, again, strict=True):
    np.testing.assert_array_equal(a, b)
  assert any((a != b).any() for a, b in zip(first, other, strict=True))
  assert {len(a) for a in first} == {tiny.batch_size}


@pytest.mark.parametrize("name", ["rnnlm", "transformer_xl", "wavenet"])
def test_sequence_models_come_back_from_a_file(name, tmp_path):
  zoo = models.build(name, **TINY[name])
  zoo.model.save(tmp_path / "model.keras")
  again = keras.saving.load_model(tmp_path / "model.keras")
  x, _ = zoo.sample(0)
  np.testing.assert_allclose(
    zoo.model.predict_on_batch(x), again.predict_on_batch(x), rtol=1e-6
  )


def test_gnmt_needs_a_layer_above_the_two_directions():
  with pytest.raises(ExtractionError, match="layers must be at least 2, not 1"):
    models.build("gnmt", layers=1)


def test_no_scope_of_nmt_is_numbered_apart_by_tensorflow():
  """Op names lead to layer and time step, gradients included."""
  zoo = models.build("nmt", **TINY["nmt"])
  x, y = (tf.nest.map_structure(tf.constant, part) for part in zoo.sample(0))

  @tf.function
  def gradients():
    with tf.GradientTape() as tape:
      loss = zoo.model.compute_loss(x, y, zoo.model(x, training=True))
    return tape.gradient(loss, zoo.model.trainable_variables)

  graph = gradients.get_concrete_function().graph
  # TensorFlow may number the model itself: nmt_1/translator_1/...
  names = {
    re.sub("(nmt|translator)_[0-9]+/", r"\1/", op.name)
    for op in graph.get_operations()
  }
  scopes = [
    f"{part}code_{step}/{scope}"
    for part, scope in (
      ("en", "encoder_layer_0"),
      ("en", "encoder_layer_1"),
      ("de", "decoder_layer_0"),
      ("de", "decoder_layer_1"),
      ("de", "attention"),
      ("de", "softmax"),
    )
    for step in range(4)
  ]
  for scope in scopes:
    name = f"nmt/translator/{scope}/MatMul"
    assert name in names
    assert any(n.startswith(f"gradient_tape/{name}") for n in names)


def test_nmt_scores_words_by_a_softmax():
  """Summed over the vocabulary, a word's probabilities make 1."""
  sizes = {"units": 8, "vocabulary": 5, "length": 1}
  model = models.build("nmt", batch_size=1, **sizes).model
  source = np.array([[3]], np.int32)
  total = sum(
    np.exp(model.predict_on_batch([source, np.array([[2, word]], np.int32)]))
    for word in range(5)
  )
  np.testing.assert_allclose(total, [[1.0]], rtol=1e-5)


@pytest.mark.parametrize("name", ["rnnlm_2", "transformer_xl_2"])
def test_variants_are_families_of_other_sizes(name):
  family, sizes = models.VARIANTS[name]
  assert family in TINY
  small = {k: v for k, v in TINY[family].items() if k not in sizes}
  zoo = models.build(name, **small)
  assert zoo.name == name
  assert dict(zoo.sizes) | sizes == dict(zoo.sizes)


def test_unknown_model_lists_the_choices():
  with pytest.raises(ExtractionError, match=r"'vgg'.*inception_v3, nmt"):
    models.build("vgg")


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    ({"depth": 3}, r"no size 'depth': choose from batch_size, layers, units"),
    ({"units": 0}, r"units must be a positive integer, not 0"),
    ({"units": 1.5}, r"units must be a positive integer, not 1\.5"),
    ({"batch_size": -1}, r"batch_size must be a positive integer, not -1"),
  ],
)
def test_wrong_sizes_are_named(sizes, message):
  with pytest.raises(ExtractionError, match=message):
    models.build("nmt", **sizes)


def test_too_small_images_are_refused():
  with pytest.raises(ExtractionError, match="image_size must be at least 75"):
    models.build("inception_v3", image_size=74)


@pytest.mark.parametrize(
  ("size", "told"),
  [
    ("batch_size", "give the batch size by itself"),
    ("name", "model 'nmt' has no size 'name'"),
  ],
)
def test_what_is_no_size_is_refused_by_name(size, told):
  with pytest.raises(ExtractionError, match=told):
    open_source("nmt", sizes={size: 4}).trace()
