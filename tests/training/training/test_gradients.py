"""Clipping by the norm, of gradients of any size."""

import numpy as np
import pytest
import tensorflow as tf

from tfplace.learned.train.objectives import clipped


def norm_of(gradients):
  return float(tf.linalg.global_norm(gradients))


def test_is_that_of_tensorflow_where_nothing_overflows():
  rng = np.random.default_rng(0)
  for scale in (1e-6, 0.1, 10.0, 1e6):
    gradients = [
      tf.constant(scale * rng.normal(size=shape), tf.float32)
      for shape in ([3, 4], [5], [])
    ]
    wanted, _ = tf.clip_by_global_norm(gradients, 1.25)
    for mine, theirs in zip(clipped(gradients, 1.25), wanted, strict=True):
      np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_squares_that_overflow_do_not_matter():
  gradients = [tf.constant([3e30, 0.0]), tf.constant([[4e30]])]
  assert not np.isfinite(norm_of(gradients))
  found = clipped(gradients, 2.0)
  np.testing.assert_allclose(found[0], [1.2, 0.0], rtol=1e-6)
  np.testing.assert_allclose(found[1], [[1.6]], rtol=1e-6)


@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_moves_nothing(broken):
  found = clipped([tf.constant([1.0, broken]), tf.constant([2.0])], 1.0)
  assert all(not gradient.numpy().any() for gradient in found)


def test_zeros_stay_zeros():
  assert clipped([tf.zeros([2]), tf.zeros([1, 3])], 1.0)[1].shape == [1, 3]
  assert norm_of(clipped([tf.zeros([2])], 1.0)) == 0.0


def test_sparse_gradients_become_dense():
  sparse = tf.IndexedSlices(
    tf.constant([[3.0], [4.0]]), tf.constant([1, 1]), [3, 1]
  )
  (found,) = clipped([sparse], 100.0)
  np.testing.assert_allclose(found, [[0.0], [7.0], [0.0]])
