"""Placeto in training: rewards, updates, exact resume, export."""

import dataclasses
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tf_agents.agents.reinforce import reinforce_agent
from tf_agents.specs import tensor_spec

import tfplace
from tests.testing.placeto_tasks import (
  SMALL,
  learner_of,
  task_of,
  tasks_of,
  weights_of,
)
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.slow import TRAINING_SEEDS
from tfplace import Simulator
from tfplace.core.budget import Budget
from tfplace.errors import TrainingError
from tfplace.learned import export
from tfplace.learned.placeto.agents import PlacetoConfig, discounted_returns
from tfplace.learned.placeto.features import random_choices
from tfplace.learned.placeto.learner import Episodes, PlacetoLearner
from tfplace.learned.placeto.placer import PlacetoPlacer
from tfplace.learned.train.config import ImitationConfig, PPOConfig, TrainConfig
from tfplace.learned.train.objectives import Choices, policy_loss
from tfplace.learned.train.trainer import Trainer

MAX_ITERATIONS = 60


@pytest.fixture(scope="module")
def ten_ops():
  return problem_of(random_graph(10, seed=3), gpus(3))


@pytest.fixture(scope="module")
def optimum_us(ten_ops):
  """Finds the optimum by trying all 3^10 placements."""
  every = np.array(list(itertools.product(range(3), repeat=10)), np.int32)
  return Simulator(ten_ops).run(every).step_time_us.min()


@pytest.mark.parametrize("seed", TRAINING_SEEDS)
def test_the_most_probable_devices_become_the_optimum(
  ten_ops, optimum_us, seed
):
  """Runs episodes from random placements; each visits every group in order."""
  task = task_of(ten_ops)
  assert optimum_us < 0.75 * task.baseline_us  # there is something to find
  learner = learner_of(
    [task],
    samples=17,
    seed=seed,
    ppo={"learning_rate": 3e-3, "max_clip_fraction": 0.3},
    minibatch=40,
    from_best=0.0,
  )
  for iteration in range(MAX_ITERATIONS):
    step = learner.improve(0, np.random.default_rng([seed, iteration]))
    if step.greedy_us <= optimum_us:
      break
  assert step.greedy_us == task.best_us == optimum_us
  print(f"seed {seed}: optimum after {task.evaluations} placements")


def play(task, config, seed=0, number=3):
  """Rewards [number, visits * N] of random episodes, first and last
  placements."""
  count = task.decisions.num_decisions
  rng = np.random.default_rng(seed)
  episodes = Episodes([task], count, config)
  first = random_choices(task.decisions.allowed, number, rng)
  now, rewards = episodes.reset(0, first), []
  for step in range(config.visits * count):
    assert (now.observation["step"] == step).all()
    assert not now.is_last().any()
    drawn = random_choices(task.decisions.allowed, number, rng)
    before = now.observation["placement"]
    now = episodes.step(drawn[:, step % count])
    others = np.arange(count) != step % count
    after = now.observation["placement"]
    assert (after[:, ~others] == drawn[:, ~others]).all()
    assert (after[:, others] == before[:, others]).all()
    rewards.append(now.reward)
  assert now.is_last().all()
  return np.stack(rewards, axis=1), first, now.observation["placement"]


def test_rewards_add_up_to_the_ratio_of_first_and_last_step_time():
  (task,) = tasks_of(12)
  rewards, first, last = play(task, PlacetoConfig())
  times = [
    task.evaluator.run(task.decisions.to_devices(choices)).step_time_us
    for choices in (first, last)
  ]
  before, after = np.array(times) / task.baseline_us
  np.testing.assert_allclose(
    rewards.sum(axis=1), np.log(before / after), atol=1e-5
  )
  # One look before the first step and one after each.
  assert task.evaluations == 3 * 13


@pytest.mark.usefixtures("eagerly")
def test_an_episode_of_two_visits_passes_over_all_groups_twice():
  (task,) = tasks_of(6)
  rewards, *_ = play(task, PlacetoConfig(visits=2))
  assert rewards.shape == (3, 12)
  learner = learner_of([task], samples=4, visits=2)
  task.evaluations = 0
  learner.improve(0, np.random.default_rng(0))
  assert task.evaluations == 4 * 13  # a look first, then one for each step


@pytest.mark.usefixtures("eagerly")
def test_the_policy_sees_the_group_of_the_visit():
  (task,) = tasks_of(6)
  learner = learner_of([task], visits=2)
  episodes = Episodes([task], 6, PlacetoConfig(visits=2))
  now = episodes.reset(0, np.zeros((4, 6), np.int32))
  steps = np.array([2, 8, 5, 12], np.int32)  # two of group 2, two of group 5
  seen = now._replace(observation={**now.observation, "step": steps})
  actor = learner._update.agent.actor_net
  logits = actor(seen.observation)[0].logits.numpy()
  # Rows of one product may be rounded apart from each other.
  np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5)
  np.testing.assert_allclose(logits[2], logits[3], rtol=1e-5)
  assert not np.allclose(logits[0], logits[2], rtol=1e-3)


def test_without_intermediate_rewards_the_last_step_is_worth_all():
  every, last = (
    play(tasks_of(6)[0], PlacetoConfig(intermediate_rewards=is_wanted))[0]
    for is_wanted in (True, False)
  )
  assert (last[:, :-1] == 0).all() and (every[:, :-1] != 0).any()
  np.testing.assert_allclose(last[:, -1], every.sum(axis=1), atol=1e-5)


def test_memory_beyond_the_limit_costs_twice_its_gigabytes():
  ops = [tfplace.OpSpec(f"v{i}", "Relu", {"GPU": 9.0}, [], 3e9) for i in (0, 1)]
  problem = problem_of(
    tfplace.build_graph("g", ops, []), gpus(2, memory_bytes=5.5e9)
  )
  task = task_of(problem)
  episodes = Episodes([task], 2, PlacetoConfig(max_cost=9.0))
  episodes.reset(0, np.array([[0, 0]], np.int32))
  episodes.step(np.array([0]))
  now = episodes.step(np.array([1]))
  # 9, 1, 9 us on one device and 0.5 GB too much; then 9 us, and all fits.
  assert now.reward == pytest.approx(np.log(19 / 9) + 2 * 0.5)
  assert episodes.final_us == [9.0] and task.best_us == 9.0


def test_costs_are_bounded():
  (task,) = tasks_of(6)
  config = PlacetoConfig(max_cost=-0.5)
  rewards, *_ = play(task, config, number=2)
  assert (rewards == 0).all()  # all are slower than exp(-0.5)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("seed", range(3))
def test_placements_keep_to_colocation_and_allowed_devices(seed):
  ops = [
    tfplace.OpSpec(
      f"op{i}",
      "MatMul",
      {"CPU": 9.0} if i % 9 == 4 else {"GPU": 5.0, "CPU": 9.0},
      [10],
      colocation=f"g{i % 9}",
    )
    for i in range(27)
  ]
  graph = tfplace.build_graph("g", ops, [(i, 0, i + 1) for i in range(26)])
  problem = problem_of(graph, gpus(2, cpu=True))
  task = task_of(problem)
  tried = []
  evaluator = task.evaluator
  run = evaluator.run
  evaluator.run = lambda devices, **more: (
    tried.append(devices) or run(devices, **more)
  )
  learner = learner_of([task], seed=seed)
  learner.imitate(0)
  learner.improve(0, np.random.default_rng(seed))
  tried = np.concatenate(tried)
  assert len(tried) == task.evaluations == 5 + 5 * 10
  for devices in tried:
    tfplace.Placement(problem, devices)  # checks both


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("algorithm", ["ppo", "reinforce"])
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(
  tmp_path, algorithm
):
  def train(folder, iterations):
    tasks = tasks_of(3)
    config = learner_config(algorithm, iterations)
    trainer = Trainer(tasks, config, checkpoint_dir=tmp_path / folder)
    trainer.run()
    return trainer, tasks

  whole, tasks = train("whole", 2)
  train("parts", 1)
  parts, again = train("parts", 2)
  np.testing.assert_array_equal(
    weights_of(whole.learner), weights_of(parts.learner)
  )
  assert whole.history == parts.history
  for one, other in zip(tasks, again, strict=True):
    assert one.best_us == other.best_us
    assert one.evaluations == other.evaluations


def learner_config(algorithm, iterations):
  return TrainConfig(
    iterations=iterations,
    strategy="placeto",
    checkpoint_every=1,
    network=dataclasses.replace(SMALL, rounds=1),
    method=PlacetoConfig(
      PPOConfig(samples=3, epochs=2), algorithm=algorithm, minibatch=4
    ),
    imitation=ImitationConfig(steps=1),
  )


def test_imitation_makes_the_target_most_probable():
  (task,) = tasks_of(8)
  task.target = np.array([0, 1, 1, 0, 0, 1, 0, 1], np.int32)
  learner = learner_of([task], samples=16)
  losses = [learner.imitate(0) for _ in range(150)]
  assert np.mean(losses[-10:]) < 0.5 * losses[0]


def test_loss_is_that_of_tf_agents_per_step():
  """Two episodes of three steps: tf-agents sums steps, here they are a mean."""
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(2, 3, 4)).astype(np.float32)
  actions = rng.integers(0, 4, (2, 3)).astype(np.int32)
  returns = rng.normal(size=(2, 3)).astype(np.float32)
  chosen = Choices(
    tf.constant(logits.reshape(6, 1, 4)),
    tf.constant(actions.reshape(6, 1)),
    tf.ones([6, 1]),
  )
  found = policy_loss([chosen], tf.constant(returns.reshape(6)))
  import tensorflow_probability as tfp

  spec = tensor_spec.BoundedTensorSpec((), tf.int32, 0, 3)
  theirs = reinforce_agent.ReinforceAgent.policy_gradient_loss(
    type("Agent", (), {"action_spec": spec, "_debug_summaries": False})(),
    tfp.distributions.Categorical(logits=logits, dtype=tf.int32),
    tf.constant(actions),
    tf.zeros([2, 3], tf.bool),
    tf.constant(returns),
    tf.constant(2.0),
    tf.ones([2, 3]),
  )
  assert float(found) == pytest.approx(float(theirs) / 3, rel=1e-5)


def test_returns_by_hand():
  found = discounted_returns(np.array([[1.0, 2.0, 4.0]]), 0.5)
  assert found.tolist() == [[3.0, 4.0, 4.0]]  # 1 + 2/2 + 4/4, 2 + 4/2, 4


def test_baseline_of_a_step_is_its_mean_over_recent_rounds():
  update = learner_of(
    tasks_of(3), algorithm="reinforce", baseline_rounds=2
  )._update
  first = update._baseline(0, np.array([1.0, 2.0, 3.0]))
  second = update._baseline(0, np.array([3.0, 2.0, 1.0]))
  third = update._baseline(0, np.array([5.0, 6.0, 7.0]))
  assert first.tolist() == [1, 2, 3] and second.tolist() == [2, 2, 2]
  assert third.tolist() == [4, 4, 4]  # of the last two


def test_reinforce_anneals_its_rate_and_keeps_chains_together():
  # 5 us for each op, 252 us for a tensor to the other device.
  ops = [tfplace.OpSpec(f"o{i}", "Relu", {"GPU": 5.0}, [1e6]) for i in range(4)]
  chain = tfplace.build_graph("chain", ops, [(i, 0, i + 1) for i in range(3)])
  task = task_of(problem_of(chain, gpus(2)))
  learner = learner_of(
    [task],
    samples=9,
    algorithm="reinforce",
    first_learning_rate=2e-2,
    last_learning_rate=2e-3,
    first_entropy=0.02,
    anneal_iterations=20,
    from_best=0.0,
  )
  steps = [learner.improve(0, np.random.default_rng(i)) for i in range(21)]
  rate = float(learner._update.optimizer.learning_rate)
  assert rate == pytest.approx(2e-3)
  assert steps[0].sample_us > 5 * task.baseline_us
  assert steps[-1].greedy_us == steps[-1].sample_us == task.baseline_us


def test_too_many_decisions_are_refused():
  with pytest.raises(TrainingError, match=r"600 decisions.*--max_decisions"):
    learner_of(tasks_of(PlacetoLearner.max_decisions + 88))


def test_an_exported_policy_places_without_keras_2(tmp_path):
  problem = problem_of(random_graph(30, 4, cpu_only=True), gpus(2, cpu=True))
  learner = learner_of([task_of(problem)])
  export.export_policy(learner.exportable(), tmp_path / "policy")
  placer = PlacetoPlacer(str(tmp_path / "policy"), samples=4)
  here = placer.place(problem, Simulator(problem), Budget(1e6, 150), seed=5)
  assert here.evaluations <= 150 and here.evaluation.feasible
  tfplace.save_graph(problem.graph, tmp_path / "g.json")
  tfplace.save_cluster(problem.cluster, tmp_path / "c.json")
  code = (
    "import sys, tfplace; from tfplace.placers import place\n"
    "p = tfplace.Problem(tfplace.load_graph(sys.argv[1]),"
    " tfplace.load_cluster(sys.argv[2]))\n"
    "from tfplace.learned.placeto.placer import PlacetoPlacer\n"
    "from tfplace.core.budget import Budget\n"
    "r = PlacetoPlacer(sys.argv[3], samples=4).place("
    "p, tfplace.Simulator(p), Budget(1e6, 150), 5)\n"
    "assert 'tf_keras' not in sys.modules and 'tf_agents' not in sys.modules\n"
    "print(r.evaluation.step_time_us)"
  )
  clean = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
  arguments = [str(tmp_path / name) for name in ("g.json", "c.json", "policy")]
  done = subprocess.run(
    [sys.executable, "-c", code, *arguments],
    env=clean,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  assert float(done.stdout) == here.evaluation.step_time_us
