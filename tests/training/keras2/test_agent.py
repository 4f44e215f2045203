"""The objective of tf-agents' PPO, decision by decision, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned import features
from tfplace.learned.decisions import group_decisions
from tfplace.training.config import TrainConfig
from tfplace.training.encoder.agent import (
  DECISION,
  GRAPH,
  GraphBank,
  PlacementAgent,
  episodes,
)
from tfplace.training.encoder.gdp import (
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
  actor = GdpActor(bank, policy)
  return actor, PlacementAgent(bank, actor, TrainConfig("gdp", **config))


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("graph, count", [(0, 1), (1, 7)])
def test_each_decision_has_a_clipped_ratio(graph, count):
  actor, agent = agent_of(1, 7, learning_rate=0.1, entropy=0.5)
  rng = np.random.default_rng(graph)
  shape = 5, count
  observation = {
    GRAPH: np.full(shape, graph, np.int32),
    DECISION: np.broadcast_to(np.arange(count, dtype=np.int32), shape),
  }
  choices, rewards = rng.integers(0, 3, shape), rng.normal(size=5)
  old = actor.logits(observation)
  experience = episodes(observation, old, choices, rewards)
  first = agent.train(experience).extra
  assert first.clip_fraction == 0.0
  # All ratios are 1, and advantages have a mean of 0.
  assert abs(first.policy_gradient_loss) < 1e-6
  new = actor.logits(observation)
  log_old, log_new = (
    np.take_along_axis(
      tf.nn.log_softmax(logits).numpy(), choices[..., None], axis=-1
    )[..., 0]
    for logits in (old, new)
  )
  ratio = np.exp(log_new - log_old)
  centered = np.repeat((rewards - rewards.mean())[:, None], count, axis=1)
  padded = np.append(centered, np.zeros((5, 1)), axis=1)
  advantage = centered / padded.std()
  bounded = np.clip(ratio, 0.8, 1.2)
  objective = np.minimum(ratio * advantage, bounded * advantage)
  second = agent.train(experience).extra
  # The mean is over the padded last column, too.
  expected = -objective.sum() / padded.size
  found = float(second.policy_gradient_loss)
  assert found == pytest.approx(expected, rel=1e-3)
  outside = np.abs(np.append(ratio, ratio[:, -1:], axis=1) - 1) > 0.2
  assert 0 < float(second.clip_fraction) == pytest.approx(outside.mean())
  probs = tf.nn.softmax(new).numpy()
  entropy = -(probs * np.log(probs)).sum() / padded.size
  found = float(second.entropy_regularization_loss)
  assert found == pytest.approx(-0.5 * entropy, rel=1e-4)


@pytest.mark.parametrize(
  "elite, expected",
  [
    (1.0, [1.0, 5.0, -9.0, 3.0]),  # their mean is 0
    # 5 and 3 lead the best of the others, 1, by 4 and 2: on average by 1.5.
    (0.5, [-1.5, 2.5, -1.5, 0.5]),
  ],
)
def test_advantages_are_centered_leads_of_the_elite(elite, expected):
  _, agent = agent_of(4, elite=elite)
  returns = tf.repeat([[1.0], [5.0], [-9.0], [3.0]], 6, axis=1)
  found = agent.compute_advantages(None, returns, None, tf.zeros([4, 7]))
  np.testing.assert_array_equal(found, np.repeat([expected], 6, axis=0).T)
