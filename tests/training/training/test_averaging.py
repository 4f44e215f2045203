"""The moving average of weights, after few steps and after many."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned.decisions import group_decisions
from tfplace.learned.encoder.learner import MovingAverage
from tfplace.learned.gdp.learner import GdpLearner
from tfplace.learned.gdp.network import NetworkConfig
from tfplace.learned.train.config import TrainConfig
from tfplace.learned.train.tasks import make_task
from tfplace.simulate import Simulator

SMALL = NetworkConfig(
  units=8, type_units=4, sage_layers=1, attention_layers=1, heads=2
)


def test_the_average_of_few_steps_follows_quickly():
  weight, average = tf.Variable([2.0, 0.0]), tf.Variable([0.0, 0.0])
  moving = MovingAverage([weight], [average], 0.999)
  np.testing.assert_array_equal(average, [2.0, 0.0])  # as it was then
  expected, keeps = np.array([2.0, 0.0]), [2 / 11, 3 / 12, 4 / 13]
  for step, keep in enumerate(keeps):
    value = np.array([1.0, float(step)])
    weight.assign(value)
    moving.step()
    expected = keep * expected + (1 - keep) * value
  np.testing.assert_allclose(average, expected, rtol=1e-6)


def test_many_steps_keep_the_decay():
  weight, average = tf.Variable(0.0), tf.Variable(0.0)
  moving = MovingAverage([weight], [average], 0.5)
  for _ in range(9):
    moving.step()
  weight.assign(1.0)
  moving.step()
  np.testing.assert_allclose(average, 0.5)
  moving.restart()
  np.testing.assert_allclose(average, 1.0)


@pytest.mark.usefixtures("eagerly")
def test_what_is_exported_is_the_average():
  problem = problem_of(random_graph(12, 3), gpus(2))
  task = make_task(group_decisions(problem), Simulator(problem))
  config = TrainConfig(network=SMALL)
  learner = GdpLearner([task], config)
  expected = [v.numpy() for v in learner.policy.variables]
  for step in range(3):
    learner.imitate(0)
    keep = (2 + step) / (11 + step)
    expected = [
      keep * mean + (1 - keep) * v.numpy()
      for mean, v in zip(expected, learner.policy.variables, strict=True)
    ]
  found = learner.exportable().variables
  for mean, mine in zip(expected, found, strict=True):
    np.testing.assert_allclose(mine, mean, rtol=1e-4, atol=1e-6)
  learner.set_weights(learner.policy.variables)
  for v, mine in zip(learner.policy.variables, found, strict=True):
    np.testing.assert_array_equal(mine, v)
