"""Rewards: `tfplace.learned.train.tasks`."""

import numpy as np
import pytest

from tfplace.learned.train.tasks import log_rewards, root_rewards


def test_a_logarithm_is_zero_at_the_baseline():
  found = log_rewards(np.array([100.0, 100.0 * np.e, np.inf]), 100.0, -2.0)
  np.testing.assert_allclose(found, [0.0, -1.0, -2.0], atol=1e-6)


def test_a_root_is_minus_one_at_the_baseline():
  found = root_rewards(np.array([100.0, 225.0, np.inf]), 100.0, -3.0)
  assert found.tolist() == [-1.0, -1.5, -3.0]


@pytest.mark.parametrize("rewards", [log_rewards, root_rewards])
def test_however_slow_the_faster_placement_has_the_higher_reward(rewards):
  # 25 and 50 times the baseline: both are under any sensible lower bound.
  slow, slower, out = rewards(np.array([2500.0, 5000.0, np.inf]), 100.0, -2.0)
  assert slow > slower
  assert slower >= out


@pytest.mark.parametrize("rewards", [log_rewards, root_rewards])
def test_where_nothing_fits_all_rewards_are_that_of_the_infeasible(rewards):
  assert rewards(np.full(3, np.inf), 100.0, -7.0).tolist() == [-7.0] * 3
