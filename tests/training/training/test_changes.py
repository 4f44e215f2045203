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

QUICK = ChangeConfig(searches=(50, 400))


def found(problem, config=QUICK):
  decisions = group_decisions(problem)
  return decisions, change_tasks(decisions, Simulator(problem), config)


def test_tasks_change_what_rules_and_short_searches_find():
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  _, tasks = found(problem)
  assert 2 <= len(tasks) <= 3
  bases = {task.decisions.base.tobytes() for task in tasks}
  assert len(bases) == len(tasks)
  simulator = Simulator(problem)
  for task in tasks:
    (base_us,) = simulator.run(task.decisions.base[None]).step_time_us
    assert task.baseline_us == base_us  # which is a reward of 0
    assert task.best_us == base_us
    assert task.evaluations == 1
  assert min(task.baseline_us for task in tasks) < max(
    task.baseline_us for task in tasks
  )


def test_the_placements_are_searched_once_for_all_sizes(tmp_path, monkeypatch):
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  config = dataclasses.replace(QUICK, folder=str(tmp_path))
  _, fine = found(problem, config)
  monkeypatch.setattr(changes, "find", None)  # It is not called again.
  coarse = group_decisions(problem, 12)
  tasks = change_tasks(coarse, Simulator(problem), config)
  assert coarse.num_decisions < 20
  for a, b in zip(fine, tasks, strict=True):
    np.testing.assert_array_equal(a.decisions.base, b.decisions.base)
    # A coarse decision keeps the devices of all its ops.
    assert a.baseline_us == b.baseline_us == b.best_us


def test_a_resumed_run_does_not_search_again(tmp_path, monkeypatch):
  problem = problem_of(random_graph(40, seed=10), gpus(2))
  config = dataclasses.replace(QUICK, folder=str(tmp_path))
  _, first = found(problem, config)

  def search(*_):
    raise AssertionError("searched")

  monkeypatch.setattr(changes, "find", search)
  _, again = found(problem, config)
  for a, b in zip(first, again, strict=True):
    np.testing.assert_array_equal(a.decisions.base, b.decisions.base)
  with pytest.raises(AssertionError, match="searched"):
    found(problem, dataclasses.replace(config, seed=1))


def test_a_last_search_takes_its_seconds_once(tmp_path, monkeypatch):
  problem = problem_of(random_graph(60, seed=8), gpus(3))
  config = dataclasses.replace(QUICK, folder=str(tmp_path), searches=())
  longer = dataclasses.replace(config, long_s=1.0)
  _, tasks = found(problem, longer)
  assert len(tasks) == 2  # of the rules, and of the search
  assert tasks[0].baseline_us < tasks[1].baseline_us
  # A run that goes on for other seconds keeps what is there.
  monkeypatch.setattr(changes, "find", None)
  _, again = found(problem, dataclasses.replace(longer, long_s=9.0))
  assert [t.baseline_us for t in again] == [t.baseline_us for t in tasks]


def test_what_fits_nowhere_is_said():
  problem = problem_of(random_graph(20, seed=1), gpus(2, memory_bytes=1.0))
  with pytest.raises(InfeasibleError, match="memory"):
    found(problem)
