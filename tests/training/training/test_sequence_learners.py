"""The learners of the RNN-based and the hierarchical placer."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import NETWORKS, chains_task, config_of
from tests.testing.slow import TRAINING_SEEDS
from tfplace import Simulator
from tfplace.errors import TrainingError
from tfplace.learned import export, learner_type, policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.sequence import features
from tfplace.learned.sequence.learners import HierarchicalLearner, target_groups
from tfplace.learned.sequence.networks import (
  HierarchicalConfig,
  HierarchicalNetwork,
)
from tfplace.learned.train.tasks import Task
from tfplace.learned.train.trainer import Trainer

MAX_ITERATIONS = 200
both = pytest.mark.parametrize("strategy", ["rnn", "hierarchical"])


def learner_of(strategy, seed=0, task=None, **reinforce):
  task = task or chains_task()
  config = config_of(strategy, seed, **reinforce)
  return learner_type(strategy)([task], config), task


@pytest.mark.parametrize("seed", TRAINING_SEEDS)
@both
def test_what_is_drawn_becomes_the_optimum(strategy, seed):
  learner, task = learner_of(strategy, seed)
  every = np.array(list(itertools.product(range(2), repeat=10)), np.int32)
  simulated = Simulator(task.decisions.problem).run(every).step_time_us
  optimum_us = simulated.min()
  # A chain on each GPU: 5 ops of 50 us, each with 1 us of overhead; 2 of 1,024.
  assert optimum_us == pytest.approx(254.0, abs=2)
  assert (simulated == optimum_us).sum() == 2
  assert np.median(simulated) > 1.8 * optimum_us
  for iteration in range(MAX_ITERATIONS):
    step = learner.improve(0, np.random.default_rng([seed, iteration]))
    if step.greedy_us <= optimum_us and step.sample_us <= 1.2 * optimum_us:
      break
  assert step.greedy_us == task.best_us == optimum_us
  assert step.sample_us <= 1.2 * optimum_us  # half of the draws, too
  print(f"{strategy} {seed}: learnt after {task.evaluations} placements")


def test_an_iteration_is_one_call_of_the_evaluator():
  learner, task = learner_of("hierarchical", samples=5)
  calls = []
  run = task.evaluator.run
  task.evaluator = type("Counting", (), {"problem": task.decisions.problem})()
  task.evaluator.run = lambda rows: (calls.append(len(rows)), run(rows))[1]
  learner.improve(0, np.random.default_rng(0))
  assert calls == [6]  # five draws and the most probable placement
  assert task.evaluations == 6


@both
def test_imitation_learns_the_target(strategy):
  learner, task = learner_of(strategy)
  task.target = np.array([0, 1] * 5, np.int32)
  losses = [learner.imitate(0) for _ in range(120)]
  assert losses[-1] < 0.5 * losses[0]
  step = learner.improve(0, np.random.default_rng(0))
  assert step.greedy_us == pytest.approx(254.0, abs=2)


def test_a_run_that_was_stopped_goes_on_exactly(tmp_path):
  def run(iterations, folder):
    config = config_of("hierarchical", samples=4)
    config = dataclasses.replace(
      config, iterations=iterations, checkpoint_every=2
    )
    config = dataclasses.replace(
      config, imitation=dataclasses.replace(config.imitation, steps=2)
    )
    trainer = Trainer([chains_task()], config, checkpoint_dir=folder)
    trainer.run()
    return trainer

  whole = run(4, tmp_path / "whole")
  run(2, tmp_path / "stopped")
  resumed = run(4, tmp_path / "stopped")
  assert resumed.history == whole.history
  for a, b in zip(
    resumed.learner.policy.variables,
    whole.learner.policy.variables,
    strict=True,
  ):
    np.testing.assert_array_equal(a.numpy(), b.numpy())
  # Two iterations were of separate runs: the same seed gives the same result.
  assert len(whole.history[0]) == 4


def tensors(learner):
  return list(learner.inputs[0].tensors().values())


def test_an_exported_rnn_says_what_its_network_says(tmp_path):
  learner, _ = learner_of("rnn")
  export.export_policy(learner.exportable(), tmp_path / "policy")
  policy = policies.load_policy(tmp_path / "policy", "rnn")
  rng = np.random.default_rng(0)
  choices = rng.integers(0, 2, (3, 10)).astype(np.int32)
  noise = rng.gumbel(size=(3, 10, 2)).astype(np.float32)
  inputs = learner._inputs[0]
  np.testing.assert_allclose(
    policy.run("logits", [*tensors(learner), choices]),
    learner.policy.logits(inputs, tf.constant(choices)),
    atol=1e-6,
  )
  np.testing.assert_array_equal(
    policy.run("decode", [*tensors(learner), noise]),
    learner.policy.decode(inputs, tf.constant(noise)),
  )
  other, _ = learner_of("rnn", seed=1)
  other.set_weights(policy.weights)
  np.testing.assert_array_equal(
    other.policy.logits(inputs, tf.constant(choices)),
    learner.policy.logits(inputs, tf.constant(choices)),
  )


def test_an_exported_hierarchy_says_what_its_network_says(tmp_path):
  learner, _ = learner_of("hierarchical")
  export.export_policy(learner.exportable(), tmp_path / "policy")
  policy = policies.load_policy(tmp_path / "policy", "hierarchical")
  rng = np.random.default_rng(0)
  grouping = rng.integers(0, 10, (3, 10)).astype(np.int32)
  choices = rng.integers(0, 2, (3, 10)).astype(np.int32)
  inputs = learner._inputs[0]
  np.testing.assert_allclose(
    policy.run("group_logits", tensors(learner)),
    learner.policy.group_logits(inputs),
    atol=1e-6,
  )
  np.testing.assert_allclose(
    policy.run("logits", [*tensors(learner), grouping, choices]),
    learner.policy.logits(inputs, tf.constant(grouping), tf.constant(choices)),
    atol=1e-6,
  )
  assert policy.info["network"]["types"] == ["MatMul", "Relu"]
  assert policy.info["network"]["groups"] == 10


@pytest.mark.parametrize("ops, groups", [(100, 60), (10, 10)])
def test_groups_follow_the_largest_cluster_and_graph(ops, groups):
  assert NETWORKS["hierarchical"].groups  # given there, not here
  problem = problem_of(random_graph(ops, 0), gpus(3))
  task = Task(
    group_decisions(problem), Simulator(problem), 1.0, np.zeros(ops, np.int32)
  )
  config = dataclasses.replace(
    config_of("hierarchical"), network=HierarchicalConfig()
  )
  assert HierarchicalLearner([task], config).policy.config.groups == groups


@both
def test_only_the_elite_teaches(strategy):
  learner, _ = learner_of(strategy, elite=0.01, samples=8)
  seen = []
  advantages = learner._baseline.advantages

  def recorded(graph, step_us, rewards):
    seen.append((step_us, rewards))
    return advantages(graph, step_us, rewards)

  learner._baseline.advantages = recorded
  learner.improve(0, np.random.default_rng(0))
  ((step_us, taught),) = seen
  assert np.flatnonzero(taught).tolist() == [step_us.argmin()]


def test_a_sequence_that_is_too_long_is_refused():
  problem = problem_of(random_graph(600, 0), gpus(2))
  task = Task(
    group_decisions(problem), Simulator(problem), 1.0, np.zeros(600, np.int32)
  )
  with pytest.raises(TrainingError, match=r"600.*--max_decisions"):
    learner_of("rnn", task=task)


def hierarchy(groups=3):
  problem = problem_of(
    random_graph(12, seed=4, cpu_only=True), gpus(2, cpu=True)
  )
  decisions = group_decisions(problem)
  types = features.commonest_types([problem])
  seen = features.extract(decisions, types)
  network = HierarchicalNetwork(HierarchicalConfig(groups=groups, types=types))
  return network, seen, decisions


def test_group_embeddings_are_means_and_links_of_the_members():
  network, seen, _ = hierarchy()
  grouping = np.array([[0, 2] * 6, [1] * 12], np.int32)
  found = network.embed_groups(seen.tensors(), tf.constant(grouping)).numpy()
  types = network._types(seen.types).numpy()
  for row, groups in enumerate(grouping):
    links = np.zeros((3, 3))
    for a, b in zip(seen.edge_src, seen.edge_dst, strict=True):
      links[groups[a], groups[b]] += 1
    for group in range(3):
      members = np.flatnonzero(groups == group)
      expected = np.zeros(25)
      if len(members):
        expected[:20] = types[members].mean(axis=0)
        expected[20:] = seen.sizes[members].mean(axis=0)
      both_ways = np.concatenate((links[group], links[:, group]))
      both_ways /= both_ways.max() + 1
      np.testing.assert_allclose(found[row, group, :25], expected, atol=1e-6)
      np.testing.assert_allclose(found[row, group, 25:], both_ways, atol=1e-6)
    assert links.sum() == len(seen.edge_src)


def test_a_group_has_the_devices_of_its_members():
  network, seen, _ = hierarchy()
  cpu_only = np.flatnonzero(~seen.allowed[:, 0])
  assert len(cpu_only) == 2
  grouping = np.zeros((1, 12), np.int32)
  grouping[0, cpu_only] = 1  # group 2 stays empty
  found = network.group_allowed(seen.tensors(), tf.constant(grouping)).numpy()
  assert found[0].tolist() == [[True] * 3, [False, False, True], [True] * 3]
  noise = np.random.default_rng(0).gumbel(size=(50, 3, 3)).astype(np.float32)
  chosen = network.decode(
    seen.tensors(), tf.repeat(grouping, 50, axis=0), tf.constant(noise)
  ).numpy()
  assert (chosen[:, 1] == 2).all()
  assert len(set(chosen[:, 0])) == len(set(chosen[:, 2])) == 3


def test_an_op_without_a_kernel_on_its_device_goes_elsewhere():
  _, seen, decisions = hierarchy()
  grouping = np.zeros((2, 12), np.int32)
  found = features.follow_groups(
    grouping,
    np.array([[1, 0, 0], [2, 0, 0]]),
    seen.allowed,
    features.fallback_devices(decisions),
  )
  # Ops 3 and 10 run on the CPU, device 2, only.
  assert found[0].tolist() == [1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 2, 1]
  assert found[1].tolist() == [2] * 12


def test_every_sample_is_allowed():
  problem = problem_of(
    random_graph(40, seed=4, cpu_only=True), gpus(2, cpu=True)
  )
  for strategy in NETWORKS:
    decisions = group_decisions(problem)
    task = Task(decisions, Simulator(problem), 1000.0, np.zeros(40, np.int32))
    learner, _ = learner_of(strategy, task=task)
    _, sampled = learner._sample(0, np.random.default_rng(0), 50)
    choices = learner._to_choices(0, sampled)
    assert choices.shape == (51, 40)
    assert decisions.allowed[np.arange(40), choices].all()


def test_groups_of_a_target_give_the_target():
  target = np.array([2, 0, 0, 2, 0, 0, 0, 2], np.int32)
  grouping, devices = target_groups(target, 6)
  assert devices[0][grouping[0]].tolist() == target.tolist()
  # One group for each device, and of the other 4 5/8 and 3/8, rounded down:
  # 3 groups for device 0, then 2 for device 2.
  assert grouping[0].tolist() == [3, 0, 0, 3, 1, 1, 2, 4]
