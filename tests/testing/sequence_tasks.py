"""Small tasks for tests of learners, and configs of the literature's."""

import numpy as np

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.graph import OpSpec, build_graph
from tfplace.learned.decisions import group_decisions
from tfplace.training.config import TrainConfig
from tfplace.training.sequence.networks import HierarchicalConfig, RnnConfig
from tfplace.training.sequence.placeto_network import PlacetoConfig
from tfplace.training.tasks import Task

NETWORKS = {
  "rnn": RnnConfig(units=32),
  "hierarchical": HierarchicalConfig(units=32, groups=10),
  "placeto": PlacetoConfig(rounds=1),
}


def task_of(problem):
  """A task relative to all on the first device, which is also the target."""
  decisions = group_decisions(problem)
  target = decisions.allowed.argmax(axis=1).astype(np.int32)
  simulator = Simulator(problem)
  baseline = simulator.run(decisions.to_devices(target[None])).step_time_us[0]
  return Task(decisions, simulator, float(baseline), target)


def tasks_of(*sizes):
  """Tasks of random graphs on two GPUs."""
  return [
    task_of(problem_of(random_graph(size, seed=size), gpus(2)))
    for size in sizes
  ]


def chains_task():
  """Two chains on two GPUs; one of them takes 509 us, both 254 us.

  Each chain has five ops of 50 us; from 100 kB, tensors grow by 100 kB.
  """
  ops = [
    OpSpec(
      f"op{i}",
      "MatMul" if i % 2 else "Relu",
      {"GPU": 50.0},
      [1e5 * (1 + i // 2)],
    )
    for i in range(10)
  ]
  edges = [(i, 0, i + 2) for i in range(8)]
  return task_of(problem_of(build_graph("chains", ops, edges), gpus(2)))


def config_of(strategy, seed=0, iterations=0, **settings):
  return TrainConfig(
    iterations=iterations,
    seed=seed,
    strategy=strategy,
    checkpoint_every=1,
    network=NETWORKS[strategy],
    imitation_steps=1,
    **{"samples": 32, "entropy": 0.02, **settings},
  )
