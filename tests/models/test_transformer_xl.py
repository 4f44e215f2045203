import numpy as np
import pytest
import tensorflow as tf

from tfplace import models
from tfplace.errors import ExtractionError
from tfplace.models import transformer_layer

LENGTH, MEMORY = 4, 3
SIZES = {
  "batch_size": 2,
  "layers": 2,
  "units": 8,
  "heads": 2,
  "feed_forward": 12,
  "vocabulary": 20,
  "length": LENGTH,
  "memory": MEMORY,
}


def built(segments):
  return models.build("transformer_xl", **SIZES, segments=segments).model


def words(seed, segments):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 20, (2, segments * LENGTH + 1), np.int32)


def test_scores_are_of_contents_and_of_distances():
  rng = np.random.default_rng(0)
  depth, keys = 3, MEMORY + LENGTH
  about, where = rng.normal(size=(2, 1, 2, LENGTH, depth))
  contents = rng.normal(size=(1, 2, keys, depth))
  distances = rng.normal(size=(2, keys, depth))
  scores = transformer_layer.relative_scores(
    *(tf.constant(a) for a in (about, where, contents, distances))
  ).numpy()
  for head in range(2):
    for query in range(LENGTH):
      for key in range(MEMORY + query + 1):  # those that it may see
        distance = MEMORY + query - key  # row 0 is of the largest
        expected = (
          about[0, head, query] @ contents[0, head, key]
          + where[0, head, query] @ distances[head, keys - 1 - distance]
        )
        assert scores[0, head, query, key] == pytest.approx(expected)


def test_span_has_a_sinusoid_per_distance_and_hides_the_future():
  span = transformer_layer.span(LENGTH, MEMORY, units=4)
  positions = span.positions.numpy()
  assert positions.shape == (MEMORY + LENGTH, 4)
  for row in range(MEMORY + LENGTH):
    distance = MEMORY + LENGTH - 1 - row
    angles = np.array([distance, distance / 100])  # 10000 ** (2 / 4) = 100
    np.testing.assert_allclose(
      positions[row], [*np.sin(angles), *np.cos(angles)], atol=1e-6
    )
  hidden = span.mask.numpy() < -1e6
  query, key = np.indices(hidden.shape)
  np.testing.assert_array_equal(hidden, key > query + MEMORY)
  assert (span.mask.numpy()[~hidden] == 0).all()


def test_memory_carries_over_between_segments_and_steps():
  """Two segments in one step say what one segment in each of two says."""
  text = words(0, segments=2)
  together, apart = built(segments=2), built(segments=1)
  apart.set_weights(together.get_weights())
  at_once = together.predict_on_batch(text)
  first = apart.predict_on_batch(text[:, : LENGTH + 1])
  second = apart.predict_on_batch(text[:, LENGTH:])
  np.testing.assert_allclose(
    at_once, np.concatenate([first, second], axis=1), rtol=1e-5
  )
  # And the memory matters: without it, the second is another.
  for variable in apart.non_trainable_variables:
    variable.assign(tf.zeros(variable.shape))
  alone = apart.predict_on_batch(text[:, LENGTH:])
  assert not np.allclose(alone, second, rtol=1e-3)


def test_no_word_is_told_by_those_after_it():
  text = words(1, segments=2)
  changed = text.copy()
  changed[:, 6] = (changed[:, 6] + 1) % 20
  fresh, same = built(segments=2), built(segments=2)
  same.set_weights(fresh.get_weights())
  before = fresh.predict_on_batch(text)
  after = same.predict_on_batch(changed)
  np.testing.assert_allclose(before[:, :5], after[:, :5], rtol=1e-5)
  assert not np.allclose(before[:, 5:], after[:, 5:], rtol=1e-3)


def test_no_gradient_flows_into_memory():
  """The second segment's loss says nothing to words of the first alone."""
  model = built(segments=2)
  text = np.concatenate(
    (np.full((2, LENGTH), 3), np.full((2, LENGTH + 1), 7)), axis=1
  ).astype(np.int32)
  table = model.get_layer("segments").embedding.embeddings
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(model(text)[:, LENGTH:])
  gradient = tf.convert_to_tensor(tape.gradient(loss, table.value)).numpy()
  assert not gradient[3].any()
  assert gradient[7].any()


@pytest.mark.parametrize(("units", "heads"), [(9, 3), (8, 3)])
def test_units_are_even_and_shared_out_among_heads(units, heads):
  sizes = {**SIZES, "units": units, "heads": heads}
  with pytest.raises(ExtractionError, match=f"not {units} with {heads} heads"):
    models.build("transformer_xl", **sizes)
