"""Placements that training starts from: found once."""

import dataclasses

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import chains_task, config_of
from tests.testing.slow import slow
from tfplace import Simulator
from tfplace.learned.decisions import group_decisions
from tfplace.training import targets
from tfplace.training.config import TrainConfig
from tfplace.training.trainer import Trainer


@pytest.fixture(autouse=True)
def few_evaluations(monkeypatch):
  monkeypatch.setattr(targets, "_SEARCHES", (50, 400))


def changes(problem, size=None, **config):
  decisions = group_decisions(problem, size)
  simulator = Simulator(problem)
  return targets.change_tasks(decisions, simulator, TrainConfig(**config))


def imitated(problem, size=None, **config):
  decisions = group_decisions(problem, size)
  config = TrainConfig(strategy="gdp", **config)
  return targets.imitation_task(decisions, Simulator(problem), config)


def test_tasks_change_what_rules_and_searches_find():
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  tasks = changes(problem)
  assert 2 <= len(tasks) <= 3
  assert len({task.decisions.base.tobytes() for task in tasks}) == len(tasks)
  times = Simulator(problem).run(np.stack([t.decisions.base for t in tasks]))
  for task, base_us in zip(tasks, times.step_time_us, strict=True):
    assert task.baseline_us == task.best_us == base_us  # A reward of 0.
    assert task.evaluations == 1
  assert len(set(times.step_time_us)) > 1


def test_bases_are_searched_once_for_all_sizes(tmp_path, monkeypatch):
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  kept = {"checkpoint_dir": str(tmp_path), "search_s": 0.5}
  fine = changes(problem, **kept)
  monkeypatch.setattr(targets, "find_bases", None)  # It is not called again.
  # A resumed run may have other seconds.
  coarse = changes(problem, 12, **kept | {"search_s": 9.0})
  assert coarse[0].decisions.num_decisions < 20
  for a, b in zip(fine, coarse, strict=True):
    np.testing.assert_array_equal(a.decisions.base, b.decisions.base)
    # A coarse decision keeps the devices of all its ops.
    assert a.baseline_us == b.baseline_us == b.best_us
  with pytest.raises(TypeError):
    changes(problem, **kept, seed=1)


def test_a_resumed_run_keeps_its_demonstrations(tmp_path, monkeypatch):
  problem = problem_of(random_graph(30, seed=7), gpus(2))
  kept = {"checkpoint_dir": str(tmp_path)}
  first = imitated(problem, **kept)
  monkeypatch.setattr(targets, "demonstrate", None)  # It is not called again.
  again = imitated(problem, **kept)
  np.testing.assert_array_equal(again.target, first.target)
  assert again.evaluations == first.evaluations > 6
  with pytest.raises(TypeError):
    imitated(problem, 5, **kept)


@pytest.mark.parametrize("imitation_steps, learns", [(1, True), slow(0, False)])
def test_a_policy_rehearses_the_best_placement(imitation_steps, learns):
  task = chains_task()  # The target: all on one GPU.
  config = config_of("rnn", samples=2, learning_rate=0.0, iterations=120)
  config = dataclasses.replace(config, imitation_steps=imitation_steps)
  trainer = Trainer([task], config)
  trainer.learner.imitation_optimizer.learning_rate = 1e-2
  task.best, task.best_us = np.array([1, 0] * 5, np.int32), 254.0
  trainer.run()
  greedy_us = trainer.history[0][-1][2]
  assert (greedy_us == pytest.approx(254.0, abs=2)) == learns
