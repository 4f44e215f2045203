"""Imitation: placements of the policy's own decisions, then the best."""

import dataclasses

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tests.testing.sequence_tasks import chains_task, config_of
from tfplace import Simulator
from tfplace.learned.decisions import group_decisions
from tfplace.learned.train import demonstrations
from tfplace.learned.train.demonstrations import DemonstrationConfig
from tfplace.learned.train.tasks import make_task
from tfplace.learned.train.trainer import Trainer


def test_demonstrations_of_merged_groups_are_their_best():
  problem = problem_of(random_graph(80, seed=7), gpus(2))
  decisions = group_decisions(problem, 6)
  simulator = Simulator(problem)
  task = make_task(
    decisions, simulator, DemonstrationConfig(search_evaluations=200)
  )
  every = np.indices((2,) * decisions.num_decisions, np.int32)
  every = every.reshape(decisions.num_decisions, -1).T
  simulated = simulator.run(decisions.to_devices(every)).step_time_us
  # 200 evaluations of search find the best of 2^6 placements; simplifying may
  # lose 1% of it.
  assert task.baseline_us == task.best_us <= 1.01 * simulated.min()
  assert task.best_us < simulated[0]
  assert task.evaluations > 200


def test_a_run_that_goes_on_keeps_its_demonstrations(tmp_path, monkeypatch):
  decisions = group_decisions(problem_of(random_graph(30, seed=7), gpus(2)))
  simulator = Simulator(decisions.problem)
  searched = DemonstrationConfig(search_evaluations=100, folder=str(tmp_path))
  first = make_task(decisions, simulator, searched)

  def search(*_):
    raise AssertionError("searched")

  monkeypatch.setattr(demonstrations, "search", search)
  again = make_task(decisions, simulator, searched)
  np.testing.assert_array_equal(again.target, first.target)
  assert again.evaluations == first.evaluations > 100
  coarser = group_decisions(decisions.problem, 5)
  for other, more in (
    (coarser, searched),
    (decisions, dataclasses.replace(searched, search_evaluations=101)),
  ):
    with pytest.raises(AssertionError, match="searched"):
      make_task(other, simulator, more)


@pytest.mark.parametrize("rehearsals, learns", [(2, True), (0, False)])
def test_a_policy_rehearses_the_best_placement_so_far(rehearsals, learns):
  task = chains_task()  # the target: all on one GPU
  config = config_of("rnn", samples=2, learning_rate=0.0)
  imitation = dataclasses.replace(
    config.imitation, steps=1, rehearsals=rehearsals, learning_rate=1e-2
  )
  trainer = Trainer(
    [task], dataclasses.replace(config, imitation=imitation, iterations=60)
  )
  task.best, task.best_us = np.array([1, 0] * 5, np.int32), 254.0
  trainer.run()
  greedy_us = trainer.history[0][-1][2]
  assert (greedy_us == pytest.approx(254.0, abs=2)) == learns
