"""Gradients, elites and rewards: what learners make of numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tfplace.training.learner import clipped, margins
from tfplace.training.tasks import INFEASIBLE, log_rewards


def test_clipping_is_tensorflows_where_nothing_overflows():
  rng = np.random.default_rng(0)
  for scale in (0.0, 1e-6, 0.1, 10.0, 1e6):
    gradients = [
      tf.constant(scale * rng.normal(size=shape), tf.float32)
      for shape in ([3, 4], [5], [])
    ]
    wanted, _ = tf.clip_by_global_norm(gradients, 1.25)
    for mine, theirs in zip(clipped(gradients, 1.25), wanted, strict=True):
      np.testing.assert_allclose(mine, theirs, rtol=1e-5)
  sparse = tf.IndexedSlices(tf.constant([[3.0], [4.0]]), [1, 1], [3, 1])
  (found,) = clipped([sparse], 100.0)
  np.testing.assert_allclose(found, [[0.0], [7.0], [0.0]])


def test_squares_that_overflow_do_not_matter():
  gradients = [tf.constant([3e30, 0.0]), tf.constant([[4e30]])]
  assert not np.isfinite(tf.linalg.global_norm(gradients))
  found = clipped(gradients, 2.0)
  np.testing.assert_allclose(found[0], [1.2, 0.0], rtol=1e-6)
  np.testing.assert_allclose(found[1], [[1.6]], rtol=1e-6)


@pytest.mark.parametrize("broken", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_moves_nothing(broken):
  found = clipped([tf.constant([1.0, broken]), tf.constant([2.0])], 1.0)
  assert all(not gradient.numpy().any() for gradient in found)


@pytest.mark.parametrize(
  "share, expected",
  [
    (1.0, [1.0, 5.0, -9.0, 3.0]),
    (0.5, [0.0, 4.0, 0.0, 2.0]),  # 5 and 3 lead the best of the others, 1
    (0.01, [0.0, 2.0, 0.0, 0.0]),  # one at the least
  ],
)
def test_margins_are_leads_over_the_best_of_the_others(share, expected):
  rewards = tf.constant([1.0, 5.0, -9.0, 3.0])
  assert margins(rewards, share).numpy().tolist() == expected
  column = margins(rewards[:, None], share)
  assert column.numpy().tolist() == [[x] for x in expected]


def test_rewards_are_logarithms_and_order_even_the_slowest():
  found = log_rewards(np.array([100.0, 100.0 * np.e, np.inf]), 100.0)
  np.testing.assert_allclose(found, [0.0, -1.0, -2.0], atol=1e-6)
  # 25 and 50 times the baseline: both are under any sensible lower bound.
  slow, slower, out = log_rewards(np.array([2500.0, 5000.0, np.inf]), 100.0)
  assert slow > slower >= out
  assert (log_rewards(np.full(3, np.inf), 100.0) == INFEASIBLE).all()
