"""What the best of the samples teach."""

import pytest
import tensorflow as tf

from tfplace.learned.train.objectives import margins


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
