"""PPO finds the known optimum of a graph of 10 ops from a random start."""

import itertools

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.slow import TRAINING_SEEDS
from tfplace import Simulator
from tfplace.learned.decisions import group_decisions
from tfplace.learned.gdp.learner import GdpLearner
from tfplace.learned.gdp.network import NetworkConfig
from tfplace.learned.train.config import PPOConfig, TrainConfig
from tfplace.learned.train.tasks import Task

MAX_ITERATIONS = 150
# Tracing a deeper network takes longer than its training here.
SMALL = NetworkConfig(
  units=32, type_units=4, sage_layers=2, attention_layers=1, heads=2
)


@pytest.fixture(scope="module")
def problem():
  return problem_of(random_graph(10, seed=3), gpus(3))


@pytest.fixture(scope="module")
def optimum_us(problem):
  """Finds the optimum by trying all 3^10 placements."""
  every = np.array(list(itertools.product(range(3), repeat=10)), np.int32)
  return Simulator(problem).run(every).step_time_us.min()


@pytest.mark.parametrize("seed", TRAINING_SEEDS)
def test_the_most_probable_placement_becomes_the_optimum(
  problem, optimum_us, seed
):
  decisions = group_decisions(problem)
  one_device = problem.time_us[:, 0].sum()
  assert optimum_us < 0.75 * one_device  # there is something to find
  task = Task(decisions, Simulator(problem), one_device, np.zeros(10, np.int32))
  config = TrainConfig(seed=seed, network=SMALL, method=PPOConfig(samples=32))
  learner = GdpLearner([task], config)
  for iteration in range(MAX_ITERATIONS):
    step = learner.improve(0, np.random.default_rng([seed, iteration]))
    if step.greedy_us <= optimum_us:
      break
  assert step.greedy_us == optimum_us
  assert task.best_us == optimum_us
  # 3^10 / 48 placements per optimum: chance alone would need more.
  print(f"seed {seed}: optimum after {task.evaluations} placements")
