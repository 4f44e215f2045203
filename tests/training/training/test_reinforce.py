"""REINFORCE against NumPy and by hand."""

import numpy as np
import pytest
import tensorflow as tf

from tfplace.learned.train.config import ReinforceConfig
from tfplace.learned.train.objectives import (
  Choices,
  MovingBaseline,
  policy_loss,
)


def random_choices(seed, shared=False, batch=4, count=6, devices=3):
  rng = np.random.default_rng(seed)
  logits = rng.normal(size=(1 if shared else batch, count, devices))
  weight = (rng.random((batch, count)) < 0.6).astype(np.float32)
  weight[:, 0] = 1
  return Choices(
    tf.Variable(logits, dtype=tf.float32),
    tf.constant(rng.integers(0, devices, (batch, count)), tf.int32),
    tf.constant(weight),
  )


def log_prob(kind, row, decision):
  logits = kind.logits.numpy()
  logits = logits[row if len(logits) > 1 else 0, decision].astype(np.float64)
  chosen = kind.chosen.numpy()[row, decision]
  return logits[chosen] - np.log(np.exp(logits).sum())


@pytest.mark.parametrize("shared", [False, True])
def test_log_probabilities_are_those_of_single_decisions(shared):
  kind = random_choices(0, shared)
  found = kind.log_probs().numpy()
  for row in range(4):
    for decision in range(6):
      expected = log_prob(kind, row, decision)
      assert found[row, decision] == pytest.approx(expected, rel=1e-5)


def test_loss_sums_kinds_means_over_weighted_decisions():
  kinds = [random_choices(1, shared=True), random_choices(2)]
  advantages = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
  expected = 0.0
  for kind in kinds:
    weight = kind.weight.numpy()
    for row in range(4):
      terms = [weight[row, i] * log_prob(kind, row, i) for i in range(6)]
      mean = sum(terms) / weight[row].sum()
      expected -= advantages[row] * mean / 4
  found = policy_loss(kinds, tf.constant(advantages))
  assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_gradient_raises_better_and_lowers_worse():
  logits = tf.Variable(tf.zeros([1, 1, 2]))
  chosen = tf.constant([[0], [1]])
  with tf.GradientTape() as tape:
    kind = Choices(logits, chosen, tf.ones([2, 1]))
    loss = policy_loss([kind], tf.constant([1.0, -1.0]))
  # -d/dl of (log p0 - log p1) / 2, and log p0 - log p1 = l0 - l1.
  assert tape.gradient(loss, logits).numpy().tolist() == [[[-0.5, 0.5]]]


def test_entropy_is_per_decision_of_what_is_allowed():
  logits = tf.constant([[[0.0, 0.0, -1e9], [0.0, -1e9, -1e9]]])
  kind = Choices(logits, tf.zeros([1, 2], tf.int32), tf.ones([1, 2]))
  # One decision between two devices, one that has no choice.
  assert float(kind.entropy()) == pytest.approx(np.log(2) / 2)


def test_the_baseline_moves_and_the_first_batch_is_its_own():
  baseline = MovingBaseline(2, ReinforceConfig(baseline_decay=0.5))
  one = np.ones(2)
  # Mean 3, standard deviation 1.
  found = baseline.advantages(1, one, np.array([2.0, 4.0]))
  np.testing.assert_allclose(found, [-1.0, 1.0], rtol=1e-4)
  # Still 3 and 1 when the next batch comes; then 0.5 * 3 + 0.5 * 5 = 4.
  found = baseline.advantages(1, one, np.array([5.0, 5.0]))
  np.testing.assert_allclose(found, [2.0, 2.0], rtol=1e-4)
  # Variance 0.5 * 1 + 0.5 * (5 - 3)^2 = 2.5.
  found = baseline.advantages(1, one, np.array([4.0, 9.0]))
  np.testing.assert_allclose(found, [0.0, 5 / np.sqrt(2.5)], atol=1e-4)
  assert [baseline.updates(g) for g in (0, 1)] == [0, 3]


def test_late_placements_that_do_not_fit_teach_nothing():
  config = ReinforceConfig(valid_only_after=1, baseline_decay=0.0)
  baseline = MovingBaseline(1, config)
  step_us = np.array([1.0, 1.0, np.inf])
  reward = np.array([-1.0, -3.0, -8.0])
  first = baseline.advantages(0, step_us, reward)
  assert first[2] < 0 < first[1] < first[0]
  # The baseline is now the mean of all three, -4; the next keeps valid ones.
  assert baseline.advantages(0, step_us, reward)[2] == 0
  # Mean -2 and root mean square of (-1 + 4, -3 + 4) = sqrt(5).
  found = baseline.advantages(0, step_us, reward)
  np.testing.assert_allclose(found, [1 / 5**0.5, -1 / 5**0.5, 0], rtol=1e-4)
  nothing = baseline.advantages(0, np.full(3, np.inf), reward)
  assert nothing.tolist() == [0, 0, 0]
