"""Learners of the literature: losses, training, exact resume, export."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import (
  NETWORKS,
  chains_task,
  config_of,
  task_of,
  tasks_of,
)
from tests.testing.slow import TRAINING_SEEDS, slow_but
from tfplace import Placement, Simulator
from tfplace.errors import TrainingError
from tfplace.graph.budget import Budget
from tfplace.placers import get_placer
from tfplace.training import export
from tfplace.training.methods import learner_type
from tfplace.training.sequence.learners import target_groups
from tfplace.training.sequence.networks import Choices, advantages
from tfplace.training.trainer import Trainer

ALTERNATING = np.array([0, 1] * 5, np.int32)  # Each chain on its own GPU.
each = pytest.mark.parametrize("strategy", NETWORKS)


def learner_of(strategy, task, seed=0, **reinforce):
  config = config_of(strategy, seed, **reinforce)
  learner = learner_type(strategy)([task], config)
  learner.imitation_optimizer.learning_rate = 1e-2
  return learner


def random_choices(seed, shared, batch=4, count=6, devices=3):
  rng = np.random.default_rng(seed)
  weight = (rng.random((batch, count)) < 0.6).astype(np.float32)
  weight[:, 0] = 1
  return Choices(
    tf.constant(
      rng.normal(size=(1 if shared else batch, count, devices)), tf.float32
    ),
    tf.constant(rng.integers(0, devices, (batch, count)), tf.int32),
    tf.constant(weight),
  )


@pytest.mark.parametrize("smoothing", [0.0, 0.25])
@pytest.mark.parametrize("shared", [False, True])
def test_loss_is_a_mean_over_weighted_decisions(shared, smoothing):
  kind = random_choices(1, shared)
  advantage = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
  weight, chosen = kind.weight.numpy(), kind.chosen.numpy()
  logits = np.broadcast_to(kind.logits.numpy().astype(np.float64), (4, 6, 3))
  expected = 0.0
  for row, decision in np.ndindex(4, 6):
    scores = logits[row, decision]
    log_probs = scores - np.log(np.exp(scores).sum())
    term = (1 - smoothing) * log_probs[chosen[row, decision]]
    term += smoothing * log_probs.mean()
    share = weight[row, decision] / weight[row].sum()
    expected -= advantage[row] * share * term / 4
  found = float(kind.loss(tf.constant(advantage), smoothing))
  assert found == pytest.approx(expected, rel=1e-5)


def test_entropy_is_per_decision_of_what_is_allowed():
  logits = tf.constant([[[0.0, 0.0, -1e9], [0.0, -1e9, -1e9]]])
  kind = Choices(logits, tf.zeros([1, 2], tf.int32), tf.ones([1, 2]))
  # One decision between two devices, one that has no choice.
  assert float(kind.entropy()) == pytest.approx(np.log(2) / 2)


def test_advantages_are_standardized_per_step():
  # Off the means 2 and 5 by -1, 1 and -3, 3, whose mean square is 5.
  found = advantages(np.array([[1.0, 2.0], [3.0, 8.0]]))
  expected = np.array([[-1.0, -3.0], [1.0, 3.0]]) / np.sqrt(5)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  assert not advantages(np.full(3, -2.0)).any()


@pytest.mark.parametrize("seed", TRAINING_SEEDS)
@pytest.mark.parametrize("strategy", slow_but(("placeto",), NETWORKS))
def test_samples_become_the_optimum(strategy, seed):
  task = chains_task()
  learner = learner_of(strategy, task, seed)
  every = np.array(list(itertools.product(range(2), repeat=10)), np.int32)
  simulated = Simulator(task.decisions.problem).run(every).step_time_us
  # A chain on each GPU: 5 ops of 50 us, each with 1 us of overhead.
  assert simulated.min() == 254.0 < 0.6 * np.median(simulated)
  for iteration in range(120):
    step = learner.improve(0, np.random.default_rng([seed, iteration]))
    if step.greedy_us == 254.0 and step.sample_us <= 1.2 * 254.0:
      break
  assert step.greedy_us == task.best_us == 254.0
  assert step.sample_us <= 1.2 * 254.0  # half of the samples, too


@pytest.mark.parametrize("strategy", slow_but(("rnn",), NETWORKS))
def test_imitation_learns_the_target(strategy):
  task = chains_task()
  learner = learner_of(strategy, task)
  task.target = ALTERNATING
  losses = [learner.imitate(0) for _ in range(120)]
  assert np.mean(losses[-10:]) < 0.5 * losses[0]
  sampled = learner._samplers[0].sample(np.random.default_rng(0), 2).choices
  assert sampled[0].tolist() == ALTERNATING.tolist()


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("strategy", slow_but(("rnn",), NETWORKS))
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, strategy):
  def run(iterations, folder):
    config = config_of(
      *(strategy, 0, iterations),
      samples=3,
      checkpoint_dir=str(tmp_path / folder),
    )
    trainer = Trainer(tasks_of(3), config)
    trainer.run()
    return trainer.history, [
      v.numpy() for v in trainer.learner.policy.variables
    ]

  whole = run(2, "whole")
  run(1, "stopped")
  history, weights = run(2, "stopped")
  assert history == whole[0] and len(history[0]) == 2
  for resumed, expected in zip(weights, whole[1], strict=True):
    np.testing.assert_array_equal(resumed, expected)


@each
def test_an_exported_policy_draws_the_learners_samples(tmp_path, strategy):
  problem = problem_of(
    random_graph(12, seed=4, cpu_only=True), gpus(2, cpu=True)
  )
  task = task_of(problem)
  learner = learner_of(strategy, task)
  export.export_policy(learner.exportable(), tmp_path / "policy")
  placer = get_placer(strategy, str(tmp_path / "policy"))
  result = placer.place(problem, Simulator(problem), Budget(60.0, 1), seed=0)
  greedy = learner._samplers[0].sample(np.random.default_rng(0), 0).choices
  expected = task.decisions.to_devices(greedy[0])
  assert result.placement.devices.tolist() == expected.tolist()
  learner.set_weights(learner.policy.variables)
  with pytest.raises(TrainingError, match="weights"):
    learner.set_weights(learner.policy.variables[1:])


@pytest.mark.usefixtures("eagerly")
@each
def test_every_sample_is_allowed_and_counted(strategy):
  task = task_of(
    problem_of(random_graph(9, seed=4, cpu_only=True), gpus(2, cpu=True))
  )
  tried, evaluator = [], task.evaluator
  run = evaluator.run
  evaluator.run = lambda rows, *more: (tried.append(rows), run(rows, *more))[1]
  learner_of(strategy, task, samples=5).improve(0, np.random.default_rng(0))
  # Placeto looks at a first placement and after each of 9 steps.
  sizes = [6] * 10 if strategy == "placeto" else [6]
  assert [len(rows) for rows in tried] == sizes
  assert task.evaluations == sum(sizes)
  for devices in np.concatenate(tried):
    Placement(task.decisions.problem, devices)  # checks


def test_groups_of_a_target_give_the_target():
  target = np.array([2, 0, 0, 2, 0, 0, 0, 2], np.int32)
  grouping, devices = target_groups(target, 6)
  assert devices[grouping].tolist() == target.tolist()
  # One group for each device, and of the other 4 5/8 and 3/8, rounded down:
  # 3 groups for device 0, then 2 for device 2.
  assert grouping.tolist() == [3, 0, 0, 3, 1, 1, 2, 4]
