"""Small Placeto learners for the tests of this folder."""

import numpy as np

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.learned.decisions import group_decisions
from tfplace.learned.placeto.agents import PlacetoConfig
from tfplace.learned.placeto.learner import PlacetoLearner
from tfplace.learned.placeto.network import PlacetoNetworkConfig
from tfplace.learned.train.config import ImitationConfig, PPOConfig, TrainConfig
from tfplace.learned.train.tasks import Task

SMALL = PlacetoNetworkConfig(units=8, rounds=2)


def task_of(problem):
  """A task relative to all on the first device, which is also the target."""
  decisions = group_decisions(problem)
  target = np.zeros(decisions.num_decisions, np.int32)
  target = np.where(
    decisions.allowed[:, 0], target, decisions.allowed.argmax(axis=1)
  )
  simulator = Simulator(problem)
  baseline = simulator.run(decisions.to_devices(target[None])).step_time_us[0]
  return Task(decisions, simulator, float(baseline), target.astype(np.int32))


def tasks_of(*sizes, cluster=None):
  return [
    task_of(problem_of(random_graph(n, seed=n), cluster or gpus(2)))
    for n in sizes
  ]


def learner_of(tasks, samples=5, seed=0, ppo=None, **placeto):
  return PlacetoLearner(
    tasks,
    TrainConfig(
      seed=seed,
      network=SMALL,
      strategy="placeto",
      method=PlacetoConfig(
        PPOConfig(samples=samples, **(ppo or {})), **placeto
      ),
      imitation=ImitationConfig(learning_rate=1e-2),
    ),
  )


def weights_of(learner):
  return np.concatenate(
    [weight.numpy().ravel() for weight in learner.policy.variables]
  )
