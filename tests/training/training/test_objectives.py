"""Gradients, advantages and rewards: what learners make of numbers."""

import numpy as np
import pytest
import tensorflow as tf

from tfplace.errors import TrainingError
from tfplace.learned.sequence.reinforce import ReinforceConfig
from tfplace.learned.train.config import PPOConfig
from tfplace.learned.train.objectives import clipped, margins
from tfplace.learned.train.tasks import log_rewards


def norm_of(gradients):
  return float(tf.linalg.global_norm(gradients))


def test_clipping_is_that_of_tensorflow_where_nothing_overflows():
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


@pytest.mark.parametrize("config", [PPOConfig, ReinforceConfig])
@pytest.mark.parametrize("share", [0.0, 1.5])
def test_an_elite_that_is_no_share_is_refused(config, share):
  with pytest.raises(TrainingError, match=str(share)):
    config(elite=share)


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


def test_equal_samples_teach_nothing():
  assert not margins(tf.fill([8], -1.5), 0.25).numpy().any()


def test_a_logarithm_is_zero_at_the_baseline():
  found = log_rewards(np.array([100.0, 100.0 * np.e, np.inf]), 100.0, -2.0)
  np.testing.assert_allclose(found, [0.0, -1.0, -2.0], atol=1e-6)


def test_however_slow_the_faster_placement_has_the_higher_reward():
  # 25 and 50 times the baseline: both are under any sensible lower bound.
  slow, slower, out = log_rewards(
    np.array([2500.0, 5000.0, np.inf]), 100.0, -2.0
  )
  assert slow > slower
  assert slower >= out


def test_where_nothing_fits_all_rewards_are_infeasible():
  assert log_rewards(np.full(3, np.inf), 100.0, -7.0).tolist() == [-7.0] * 3
