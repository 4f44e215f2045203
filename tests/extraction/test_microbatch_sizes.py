"""Microbatches of given sizes: in proportion, named, of right statistics."""

import keras
import numpy as np
import pytest

import tfplace
from tests.testing.microbatched import in_microbatches
from tfplace.errors import ExtractionError
from tfplace.graph.microbatches import VariantConfig, microbatches_of
from tfplace.variants.keras_step import trace_keras
from tfplace.variants.microbatches.parts import Parts


@pytest.mark.parametrize("examples", [1, 3, 4, 5, 12, 24, 25, 100])
@pytest.mark.parametrize("sizes", [(10, 10, 2, 2), (1, 21, 1, 1), (9, 8, 4, 3)])
def test_other_batches_are_divided_in_proportion(examples, sizes):
  parts = Parts((np_tensor(examples),), len(sizes), sizes=sizes)
  found = [parts.size(i) for i in range(parts.count)]
  assert sum(found) == examples
  assert min(found) >= 1
  if examples == 24:
    assert tuple(found) == sizes
  if examples > 24:
    shares = np.array(found) / examples * 24
    np.testing.assert_allclose(shares, sizes, atol=1.2)
  rows = [parts.inputs(i)[0].numpy() for i in range(parts.count)]
  np.testing.assert_array_equal(np.concatenate(rows), np.arange(examples))


def np_tensor(examples):
  return keras.ops.arange(examples, dtype="float32")


def image():
  model = keras.Sequential(
    [
      keras.Input((12, 12, 3)),
      keras.layers.Conv2D(4, 3, padding="same", name="conv"),
      keras.layers.Flatten(),
      keras.layers.Dense(5),
    ],
    name="net",
  )
  model.compile("adam", "mse", jit_compile=False)
  return model


def test_op_names_and_the_graph_record_the_sizes():
  config = VariantConfig.from_microbatches([5, 2, 1], 2)
  graph = tfplace.extract(
    image(), batch_size=8, microbatches=[5, 2, 1], max_in_flight=2
  )
  assert microbatches_of(graph.names) == config
  assert graph.extra["microbatch_sizes"] == [5, 2, 1]
  names = set(graph.names)
  assert any("microbatch_1/part_of_batch/examples_2/" in n for n in names)
  plain = tfplace.extract(image(), batch_size=8, microbatches=2)
  assert "microbatch_sizes" not in plain.extra
  assert microbatches_of(plain.names) == VariantConfig(2)
  uneven = tfplace.extract(image(), batch_size=8, microbatches=3)
  assert uneven.extra["microbatch_sizes"] == [3, 3, 2]
  assert microbatches_of(uneven.names) == VariantConfig(3)


def test_statistics_are_means_over_examples():
  model = keras.Sequential(
    [keras.Input((6,)), keras.layers.BatchNormalization(name="norm")]
  )
  model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
  options = {"allow_batch_statistics": True, "sizes": (5, 2, 1)}
  in_microbatches(model, 3, **options)
  x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
  model.fit(x, x, batch_size=8, verbose=0)
  found = model.get_layer("norm").moving_mean
  # The mean over examples of microbatches' means is that of the batch.
  np.testing.assert_allclose(found, 0.01 * x.mean(axis=0), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
  "sizes, told",
  [
    ([5, 2], r"\[5, 2\], in all 7 examples, and the batch has 8: give sizes"),
    ([5, 0, 3], r"\[5, 0, 3\]; sizes must be .* integers of at least 1"),
    ([5, 2.5, 0.5], "sizes must be"),
    ([], "sizes must be one or more"),
    ([True, 7], "sizes must be"),
    (["4", "4"], "sizes must be"),
  ],
)
def test_wrong_sizes_are_one_sentence(sizes, told):
  with pytest.raises(ExtractionError, match=told) as caught:
    trace_keras(image(), 8, microbatches=VariantConfig.from_microbatches(sizes))
  assert "\n" not in str(caught.value)


def test_a_batch_of_one_example_is_told_in_the_singular():
  told = "microbatches is 2, and the batch has 1 example: give at most"
  with pytest.raises(ExtractionError, match=told):
    trace_keras(image(), 1, microbatches=VariantConfig(2))
