"""Tasks of policies that change placements."""

import dataclasses

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.errors import InfeasibleError
from tfplace.learned.decisions import group_decisions
from tfplace.learned.train import changes
from tfplace.learned.train.changes import ChangeConfig, change_tasks
from tfplace.learned.train.tasks import Task

QUICK = ChangeConfig(searches=(50, 400), search_evaluations=2000)


def found(problem, config=QUICK):
  decisions = group_decisions(problem)
  return decisions, change_tasks(decisions, Simulator(problem), config)


def test_tasks_change_what_rules_and_short_searches_find():
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  decisions, tasks = found(problem)
  assert 2 <= len(tasks) <= 4
  bases = {task.decisions.base.tobytes() for task in tasks}
  assert len(bases) == len(tasks)
  simulator = Simulator(problem)
  for task in tasks:
    (base_us,) = simulator.run(task.decisions.base[None]).step_time_us
    assert task.baseline_us == base_us  # which is a reward of 0
    rows = decisions.to_devices(np.stack([task.target, task.best]))
    target_us, _ = simulator.run(rows).step_time_us
    assert task.best_us <= min(base_us, target_us)
    assert task.evaluations == 2
  assert min(task.baseline_us for task in tasks) < max(
    task.baseline_us for task in tasks
  )


def test_a_target_has_the_names_of_the_base():
  # Another permutation of equal devices would ask to move everything.
  problem = problem_of(random_graph(40, seed=9), gpus(4))
  decisions = group_decisions(problem)
  base = np.arange(40, dtype=np.int32) % 4
  task = Task(
    dataclasses.replace(decisions, base=base), Simulator(problem), 1.0, base
  )
  swapped = np.array([2, 3, 1, 0], np.int32)[base]
  np.testing.assert_array_equal(task.named(swapped), base)
  alone = Task(decisions, Simulator(problem), 1.0, base)
  np.testing.assert_array_equal(alone.named(swapped), base)


def test_a_resumed_run_does_not_search_again(tmp_path, monkeypatch):
  problem = problem_of(random_graph(40, seed=10), gpus(2))
  config = dataclasses.replace(QUICK, folder=str(tmp_path))
  _, first = found(problem, config)

  def search(*_):
    raise AssertionError("searched")

  monkeypatch.setattr(changes, "find", search)
  _, again = found(problem, config)
  for a, b in zip(first, again, strict=True):
    np.testing.assert_array_equal(a.target, b.target)
    np.testing.assert_array_equal(a.decisions.base, b.decisions.base)
  with pytest.raises(AssertionError, match="searched"):
    found(problem, dataclasses.replace(config, seed=1))


def test_what_fits_nowhere_is_said():
  problem = problem_of(random_graph(20, seed=1), gpus(2, memory_bytes=1.0))
  with pytest.raises(InfeasibleError, match="memory"):
    found(problem)
