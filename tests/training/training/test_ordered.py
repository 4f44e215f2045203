"""A policy that decides in order learns known optima, by imitation and PPO."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.eager import run_eagerly
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.slow import TRAINING_SEEDS
from tfplace import Simulator
from tfplace.core.budget import Budget
from tfplace.learned import export, policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.encoder.learner import logits_of
from tfplace.learned.ordered.decoding import decode
from tfplace.learned.ordered.learner import (
  OrderedLearner,
  OrderedPPOConfig,
)
from tfplace.learned.ordered.network import OrderedConfig
from tfplace.learned.ordered.placer import Pass, single_gains
from tfplace.learned.sampling import step_times
from tfplace.learned.train.config import (
  ImitationConfig,
  TrainConfig,
)
from tfplace.learned.train.tasks import Task
from tfplace.placers.tracker import Tracker

# Tracing a deeper network takes longer than its training here.
SMALL = OrderedConfig(
  units=32, type_units=4, sage_layers=2, attention_layers=1, heads=2
)


def task_of(problem, target=None):
  decisions = group_decisions(problem)
  if target is None:
    target = np.zeros(decisions.num_decisions, np.int32)
  one_device = float(np.nansum(problem.time_us[:, 0]))
  return Task(decisions, Simulator(problem), one_device, target)


def learner_of(tasks, seed=0, **method):
  config = TrainConfig(
    seed=seed,
    network=SMALL,
    method=OrderedPPOConfig(**method),
    imitation=ImitationConfig(learning_rate=5e-3),
    strategy="ordered",
  )
  return OrderedLearner(tasks, config)


def test_the_decoder_takes_what_is_most_probable():
  problem = problem_of(random_graph(60, seed=1, cpu_only=True), gpus(3, True))
  learner = learner_of([task_of(problem)])
  rng = np.random.default_rng(0)
  for variable in learner.policy.variables:  # the slopes are 0 at first
    variable.assign_add(rng.normal(0, 0.3, variable.shape))
  shape = learner._tables[0].allowed.shape
  free = np.full((1, shape[0]), -1, np.int32)
  zero = np.zeros((1, *shape), np.float32)
  samples = decode(learner._tables[0], learner._head(0), zero, free, True)
  contexts = learner.policy(learner._bank.get(tf.constant(0)))
  observed, candidates = samples.observed, samples.candidates
  logits = learner.policy.logits(contexts, observed, candidates).numpy()[0]
  chosen = logits[np.arange(shape[0]), samples.choices[0]]
  np.testing.assert_allclose(chosen, logits.max(axis=1), atol=1e-3)
  assert len(set(samples.choices[0].tolist())) > 1


@pytest.mark.parametrize("seed", TRAINING_SEEDS)
def test_ppo_finds_the_optimum_of_ten_ops_from_a_random_start(seed):
  problem = problem_of(random_graph(10, seed=3), gpus(3))
  every = np.array(list(itertools.product(range(3), repeat=10)), np.int32)
  optimum_us = Simulator(problem).run(every).step_time_us.min()
  task = task_of(problem)
  assert optimum_us < 0.75 * task.baseline_us  # there is something to find
  learner = learner_of([task], seed, samples=32)
  for iteration in range(150):
    step = learner.improve(0, np.random.default_rng([seed, iteration]))
    if step.greedy_us <= optimum_us:
      break
  assert step.greedy_us == optimum_us
  print(f"seed {seed}: optimum after {task.evaluations} placements")


def test_imitation_learns_which_single_changes_gain():
  problems = [problem_of(random_graph(40, seed), gpus(3)) for seed in range(5)]
  tasks = [task_of(problem) for problem in problems]
  for number, task in enumerate(tasks):
    rng = np.random.default_rng(number)
    base = rng.integers(0, 3, 40).astype(np.int32)
    base = base[task.decisions.decision_of]
    task.decisions = task.decisions.based_on(base)
    task.baseline_us = float(step_times(task.evaluator, base[None])[0])
  learner = learner_of(tasks[:4], gain=0.02, averaging=0.9)
  before = found_of_gains(learner, tasks[4])
  for step in range(240):
    learner.imitate(step % 4)
  # On a graph that it has not seen, too.
  assert found_of_gains(learner, tasks[4]) > max(0.6, before + 0.2)


def test_simulated_changes_come_again():
  task = task_of(problem_of(random_graph(200, seed=1), gpus(3)))
  base = np.zeros(200, np.int32)
  task.decisions = task.decisions.based_on(base)
  learner = learner_of([task], singles=16, draws=3)
  counts, simulated = [], learner._simulated

  def counted(task, choices):
    counts[-1] += len(choices)
    return simulated(task, choices)

  learner._simulated = counted
  before = task.evaluations
  with run_eagerly():
    for _ in range(7):
      counts.append(0)
      learner.imitate(0)
  assert counts == [17, 17, 17, 0, 0, 0, 0]
  # A resumed run simulates them again, and counts the same.
  assert task.evaluations == before
  drawn = [known[0].tobytes() for known in learner._changes.values()]
  assert len(set(drawn)) == 3


def found_of_gains(learner, task):
  """Gain of the 8 changes that are rated best over that of the 8 best."""
  decisions, base_us = task.decisions, task.baseline_us
  fresh = learner_of([task])
  fresh.set_weights(learner.policy.variables)
  tables = fresh._tables[0]
  with run_eagerly():
    rated = single_gains(tables, fresh._head(0))
  kept, gains = decisions.base_choices, np.zeros(rated.shape)
  for decision, device in itertools.product(range(40), range(3)):
    choices = kept.copy()
    choices[decision] = device
    us = step_times(task.evaluator, decisions.to_devices(choices)[None])[0]
    gains[decision, device] = max(0.0, np.log(base_us / us))
  best = np.argsort(-rated, axis=None)[:8]
  return gains.ravel()[best].sum() / np.sort(gains, axis=None)[-8:].sum()


def test_imitation_needs_no_other_device():
  problem = problem_of(random_graph(10, seed=1), gpus(1))
  task = task_of(problem)
  base = np.zeros(10, np.int32)
  task.decisions = task.decisions.based_on(base)
  learner = learner_of([task])
  with run_eagerly():
    assert learner.imitate(0) == 0.0


def test_ppo_learns_what_to_change():
  # All on one of three devices is far from the best; nothing else is shown.
  problem = problem_of(random_graph(10, seed=3), gpus(3))
  task = task_of(problem)
  base = np.zeros(problem.graph.num_ops, np.int32)
  task.decisions = dataclasses.replace(task.decisions, base=base)
  learner = learner_of([task], samples=32, temperature=0.5, entropy=0.0)
  first = learner.improve(0, np.random.default_rng(0))
  for iteration in range(60):
    last = learner.improve(0, np.random.default_rng([1, iteration]))
  assert last.greedy_us < first.greedy_us
  assert last.greedy_us < 0.8 * task.baseline_us


def test_an_exported_policy_places_as_it_did_in_training(tmp_path):
  problem = problem_of(random_graph(30, seed=5), gpus(3))
  task, start = task_of(problem), np.zeros((1, problem.graph.num_ops), np.int32)
  task.decisions = dataclasses.replace(task.decisions, base=start[0])
  learner = learner_of([task], neighborhoods=0.0)
  with run_eagerly():
    learner.imitate(0)
  learner._average.restart()
  export.export_policy(learner.exportable(), tmp_path / "policy")
  policy = policies.load_policy(tmp_path / "policy", "ordered")
  one = Pass(task.decisions, policy)
  tracker = Tracker("ordered", problem, Simulator(problem), Budget(60.0))
  rng = np.random.default_rng(0)
  tracker.offer(one.sample(task.decisions.base, rng, 0))  # the greedy one
  with run_eagerly():
    step = learner.improve(0, np.random.default_rng(0))
  assert tracker.best[1].step_time_us == step.greedy_us


def test_samples_in_a_neighborhood_teach_nothing_else():
  problem = problem_of(random_graph(200, seed=6), gpus(3))
  task, base = task_of(problem), np.ones(problem.graph.num_ops, np.int32)
  task.decisions = dataclasses.replace(task.decisions, base=base)
  task.best = np.full(200, 2, np.int32)  # outside, it is not to be imitated
  learner = learner_of([task], neighborhoods=1.0)
  rng = np.random.default_rng(1)
  free = learner._free(0, np.random.default_rng(1))
  assert 0 < free.sum() < 200
  learner._free = lambda *_: free
  with run_eagerly():
    drawn, _, info = learner._sample(0, rng)
  assert (drawn.choices[:, ~free] == 1).all()
  assert (drawn.choices[:, free] != 1).any()
  assert (drawn.choices[-1, free] == 2).all()
  logits = logits_of(info)[:, :200]
  probs = tf.nn.softmax(logits, axis=-1).numpy()
  assert (probs[:, ~free, 1] == 1.0).all()  # no gradient, no entropy
  assert (probs[:, free].max(axis=-1) < 1.0).all()


def test_many_iterations_change_everything():
  problem = problem_of(random_graph(200, seed=6), gpus(3))
  task, base = task_of(problem), np.ones(problem.graph.num_ops, np.int32)
  task.decisions = dataclasses.replace(task.decisions, base=base)
  learner = learner_of([task], neighborhoods=0.5)
  rng = np.random.default_rng(0)
  sizes = [int(learner._free(0, rng).sum()) for _ in range(100)]
  assert 25 <= sizes.count(200) <= 75
