"""Two chains for tests of the recurrent policies, and their learners."""

import dataclasses

import numpy as np

from tests.testing.policy_problems import gpus, problem_of
from tfplace import Simulator, core
from tfplace.learned.decisions import group_decisions
from tfplace.learned.sequence.networks import HierarchicalConfig, RnnConfig
from tfplace.learned.train.config import ReinforceConfig, TrainConfig
from tfplace.learned.train.tasks import Task

NETWORKS = {
  "rnn": RnnConfig(),
  "hierarchical": HierarchicalConfig(groups=10),
}


def chains():
  """Two chains of five ops of 50 us; from 100 kB, tensors grow by 100 kB."""
  ops = [
    core.OpSpec(
      f"op{i}",
      "MatMul" if i % 2 else "Relu",
      {"GPU": 50.0},
      [1e5 * (1 + i // 2)],
    )
    for i in range(10)
  ]
  edges = [(i, 0, i + 2) for i in range(8)]
  return core.build_graph("chains", ops, edges)


def chains_task():
  """The chains on two GPUs; the baseline is one GPU, 500 us and overheads."""
  problem = problem_of(chains(), gpus(2))
  decisions = group_decisions(problem)
  return Task(decisions, Simulator(problem), 510.0, np.zeros(10, np.int32))


def config_of(strategy, seed=0, **reinforce):
  chosen = ReinforceConfig(samples=32, learning_rate=1e-2, entropy=0.02)
  return TrainConfig(
    seed=seed,
    strategy=strategy,
    network=NETWORKS[strategy],
    method=dataclasses.replace(chosen, **reinforce),
  )
