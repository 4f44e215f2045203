"""Draws follow the policy, whether decisions explore alone or together."""

import numpy as np
import pytest

from tfplace.learned.sampling import greedy_and_samples, sample

LOGITS = np.log(np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]]))
TOGETHER = np.array([0, 1, 0], np.int32)


@pytest.mark.parametrize("groupings", [(), (TOGETHER,)])
def test_each_decision_has_the_distribution_of_the_policy(groupings):
  sampled = sample(
    LOGITS, 20_000, np.random.default_rng(0), groupings=groupings
  )
  for decision, row in enumerate(np.exp(LOGITS)):
    found = np.bincount(sampled[:, decision], minlength=3) / 20_000
    # Standard error at most 0.0036.
    np.testing.assert_allclose(found, row, atol=0.015)


def test_decisions_of_a_cluster_move_together_and_others_do_not():
  alone = sample(LOGITS, 2_000, np.random.default_rng(1))
  together = sample(
    LOGITS, 2_000, np.random.default_rng(1), groupings=(TOGETHER,)
  )
  # Decisions 0 and 2 have the same logits. Alone they agree with probability
  # .7^2 + .2^2 + .1^2 = .54.
  assert (together[:, 0] == together[:, 2]).all()
  assert (alone[:, 0] == alone[:, 2]).mean() == pytest.approx(0.54, abs=0.05)


def test_draws_are_divided_among_temperatures():
  half = 20_000
  sampled = sample(
    LOGITS, 2 * half, np.random.default_rng(5), temperatures=(1.0, 5.0)
  )
  hot = np.exp(LOGITS / 5.0)
  hot /= hot.sum(axis=1, keepdims=True)
  for part, expected in (
    (sampled[:half], np.exp(LOGITS)),
    (sampled[half:], hot),
  ):
    for decision, row in enumerate(expected):
      found = np.bincount(part[:, decision], minlength=3) / half
      np.testing.assert_allclose(found, row, atol=0.015)


def test_draws_by_inversion_have_the_probabilities_of_the_logits():
  logits = np.log([[0.7, 0.2, 0.1], [1e-12, 0.5, 0.5]]).astype(np.float32)
  sampled = greedy_and_samples(logits, 20_000, np.random.default_rng(0))
  assert sampled[0].tolist() == [0, 1]
  for decision, expected in enumerate([[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]]):
    share = np.bincount(sampled[1:, decision], minlength=3) / 20_000
    np.testing.assert_allclose(share, expected, atol=0.015)
