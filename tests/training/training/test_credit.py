"""Credit per decision, and the agent's use of it."""

import numpy as np
import pytest
from policies_testing import gpus, problem_of, random_graph
from test_agent import agent_of, loss_of

from tfplace import Simulator
from tfplace.learned.decisions import group_decisions
from tfplace.learned.train.credit import critical_path_credit, shared_credit


def test_less_of_the_path_than_the_siblings_is_credit_and_sums_say_which():
  decisions = group_decisions(problem_of(random_graph(20, 3), gpus(3)))
  choices = np.random.default_rng(0).integers(0, 3, (6, 20)).astype(np.int32)
  simulator = Simulator(decisions.problem)
  step_us = simulator.run(decisions.to_devices(choices)).step_time_us
  found = critical_path_credit(decisions, simulator, choices, weight=0.25)
  assert (found.share == 0.75).all()
  # What the decisions of a sample get adds up to the sample's own advantage,
  # in a unit that all samples share.
  total, advantage = found.own.sum(axis=1), step_us.mean() - step_us
  np.testing.assert_allclose(
    total / np.abs(total).max(), advantage / np.abs(advantage).max(), rtol=1e-4
  )


def placed(memory_bytes):
  """Every second decision apart, none, and every second pair of decisions;
  each one's highest peak."""
  cluster = gpus(2, memory_bytes=memory_bytes)
  decisions = group_decisions(problem_of(random_graph(20, 3), cluster))
  apart = np.arange(20) % 2
  pairs = np.arange(20) // 2 % 2
  choices = np.stack([apart, np.zeros(20, int), pairs]).astype(np.int32)
  batch = Simulator(decisions.problem).run(decisions.to_devices(choices))
  return decisions, choices, batch.peak_memory_bytes.max(axis=1)


def test_what_does_not_fit_keeps_the_shared_advantage():
  decisions, choices, peaks = placed(memory_bytes=1e9)
  assert max(peaks[0], peaks[2]) < 0.9 * peaks[1]
  decisions, choices, _ = placed(memory_bytes=0.95 * peaks[1])
  simulator = Simulator(decisions.problem)
  found = critical_path_credit(decisions, simulator, choices, weight=0.5)
  assert found.share[:, 0].tolist() == [0.5, 1.0, 0.5]
  assert (found.own[1] == 0).all() and (found.own[0] != 0).any()


def test_the_agents_advantage_is_its_share_and_the_decisions_own():
  agent = agent_of(3)
  logits = np.zeros((2, 3, 3), np.float32)  # every ratio is 1
  actions = np.zeros((2, 3), np.int32)
  shared, _ = loss_of(agent, 0, logits, logits, actions, np.array([1.0, -3.0]))
  assert shared == pytest.approx(1.0)  # minus the mean advantage
  agent.share.assign([[0.5], [1.0]])
  agent.own.assign([[6.0, 0.0, 0.0], [0.0, 0.0, 3.0]])
  # Sample 0: 6.5, 0.5, 0.5; sample 1: -3, -3, 0: the mean is 0.25.
  mixed, _ = loss_of(agent, 0, logits, logits, actions, np.array([1.0, -3.0]))
  assert mixed == pytest.approx(-0.25)


def test_shared_credit_changes_nothing():
  credit = shared_credit(2, 3)
  assert (credit.share == 1).all() and (credit.own == 0).all()
