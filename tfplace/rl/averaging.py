"""The moving average of a policy's weights over a training run.

Each step of PPO sees one graph, and moves the policy towards it: the average
is better on all of them, and on graphs that are in none (Polyak and Juditsky
1992). It is what gets exported; what draws placements is the policy itself.
"""

from collections.abc import Sequence

from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402


class MovingAverage(tf.Module):
  """Weights that follow others.

  Args:
    weights: what is followed.
    average: variables of the same shapes; they take over the values of now.
    decay: share of the average that each step keeps, in the long run. Of a
      short run the average is over the last tenth: after n steps a step keeps
      at most (1 + n) / (10 + n), as in `tf.train.ExponentialMovingAverage`.
  """

  def __init__(
    self,
    weights: Sequence[tf.Variable],
    average: Sequence[tf.Variable],
    decay: float,
  ) -> None:
    super().__init__(name="moving_average")
    self._pairs = list(zip(average, weights, strict=True))
    self._decay = decay
    self._steps = tf.Variable(0.0, trainable=False, name="steps")
    self.step = tf.function(self._step, autograph=False)
    self.restart()

  def restart(self) -> None:
    """Takes over the weights as they are."""
    self._steps.assign(0.0)
    for average, weight in self._pairs:
      average.assign(weight)

  def _step(self) -> None:
    """Moves the average towards the weights, once."""
    steps = self._steps.assign_add(1.0)
    keep = tf.minimum(self._decay, (1.0 + steps) / (10.0 + steps))
    for average, weight in self._pairs:
      average.assign(weight + keep * (average - weight))
