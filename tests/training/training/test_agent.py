"""The per-decision objective against NumPy, and at 10,000 decisions."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.trajectories import time_step as ts

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned.config import TrainConfig
from tfplace.learned.decisions import group_decisions
from tfplace.learned.encoder import features
from tfplace.learned.encoder.agent import (
  GRAPH,
  GraphBank,
  PerDecisionPPOAgent,
)
from tfplace.learned.gdp.learner import (
  GdpActor,
  NetworkConfig,
  PlacementNetwork,
)

SMALL = NetworkConfig(units=8, type_units=2, segment=8, pair_units=8)


def agent_of(*sizes, **config):
  graphs = [
    features.extract(group_decisions(problem_of(random_graph(n, 0), gpus(3))))
    for n in sizes
  ]
  bank = GraphBank(graphs, features.signature(axes=0))
  policy = PlacementNetwork(SMALL)
  policy.prepare(bank.get(tf.constant(0)))
  config = TrainConfig(strategy="gdp", **config)
  return PerDecisionPPOAgent(GdpActor(bank, policy), config)


def time_steps(batch, graph):
  observation = {GRAPH: tf.fill([batch, 1], graph)}
  return ts.restart(observation, batch_size=batch)._replace(
    step_type=tf.zeros([batch, 1], tf.int32),
    reward=tf.zeros([batch, 1]),
    discount=tf.ones([batch, 1]),
  )


def distribution_of(logits):
  return tfp.distributions.Independent(
    tfp.distributions.Categorical(logits=logits, dtype=tf.int32), 1
  )


def loss_of(agent, graph, old, new, actions, advantages):
  """The agent's policy loss and clip fraction for [B, P, D] logits."""
  chosen = actions[:, None]
  old_log_probs = distribution_of(old[:, None]).distribution.log_prob(chosen)
  loss = agent.policy_gradient_loss(
    time_steps(len(actions), graph),
    tf.constant(chosen),
    old_log_probs,
    tf.constant(advantages[:, None], tf.float32),
    distribution_of(tf.constant(new[:, None])),
    tf.ones([len(actions), 1]),
  )
  return float(loss), float(agent._clip_fraction)


@pytest.mark.parametrize("graph, count", [(0, 4), (1, 7)])
def test_loss_is_the_clipped_objective_without_padding(graph, count):
  agent = agent_of(4, 7)
  rng = np.random.default_rng(graph)
  old = rng.normal(size=(5, 7, 3)).astype(np.float32)
  new = old + 0.5 * rng.normal(size=old.shape).astype(np.float32)
  actions = rng.integers(0, 3, (5, 7)).astype(np.int32)
  advantages = rng.normal(size=5)

  def log_prob(logits, b, n):
    row = logits[b, n].astype(np.float64)
    return row[actions[b, n]] - np.log(np.exp(row).sum())

  total, outside = 0.0, 0
  for b in range(5):
    for n in range(count):  # past it lies padding
      ratio = np.exp(log_prob(new, b, n) - log_prob(old, b, n))
      bounded = min(max(ratio, 0.8), 1.2)
      total += min(ratio * advantages[b], bounded * advantages[b])
      outside += abs(ratio - 1) > 0.2
  found, clipped = loss_of(agent, graph, old, new, actions, advantages)
  assert found == pytest.approx(-total / (5 * count), rel=1e-4)
  assert clipped == pytest.approx(outside / (5 * count), rel=1e-5)


def test_entropy_is_per_decision():
  agent = agent_of(4, 7, entropy=0.5)
  # 4 decisions of 2.0 nats in all: 0.5 each, times the weight of 0.5.
  found = agent.entropy_regularization_loss(
    time_steps(3, 0), tf.fill([3, 1], 2.0), tf.ones([3, 1])
  )
  assert float(found) == pytest.approx(-0.25)


def test_ten_thousand_small_changes_are_not_clipped():
  """Every log-probability moves by 0.01: the joint ratio is exp(100)."""
  agent = agent_of(10_000)
  old = np.zeros((2, 10_000, 3), np.float32)
  new = old.copy()
  new[..., 0] = 0.015  # log-probability +0.01 for device 0
  actions = np.zeros((2, 10_000), np.int32)
  found, clipped = loss_of(agent, 0, old, new, actions, np.array([1.0, 1.0]))
  assert clipped == 0.0
  assert found == pytest.approx(-np.exp(0.01), rel=1e-3)


@pytest.mark.parametrize(
  "elite, expected",
  [
    (1.0, [1.0, 5.0, -9.0, 3.0]),  # their mean is 0
    # 5 and 3 lead the best of the others, 1, by 4 and 2: on average by 1.5.
    (0.5, [-1.5, 2.5, -1.5, 0.5]),
  ],
)
def test_advantages_are_centered_leads_of_the_elite(elite, expected):
  agent = agent_of(4, elite=elite)
  returns = tf.constant([[1.0], [5.0], [-9.0], [3.0]])
  found = agent.compute_advantages(None, returns, None, tf.zeros([4, 2]))
  assert found.numpy().ravel().tolist() == expected
