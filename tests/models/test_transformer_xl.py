import numpy as np
import tensorflow as tf

from tfplace import models

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
