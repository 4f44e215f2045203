"""The best placement so far."""

import numpy as np

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.graph.budget import Budget
from tfplace.graph.protocols import Evaluator
from tfplace.placers.tracker import Tracker


class Checked(Evaluator):
  """An evaluator that is no simulator."""

  def __init__(self, problem):
    self.simulator = Simulator(problem)

  def evaluate(self, placements):
    return self.simulator.evaluate(placements)


def test_an_offer_that_is_no_better_ends_early():
  problem = problem_of(random_graph(40, seed=4), gpus(3))
  rows = np.random.default_rng(0).integers(0, 3, (60, 40)).astype(np.int32)
  trackers = [
    Tracker("test", problem, make(problem), Budget(60.0))
    for make in (Simulator, Checked)
  ]
  times = Simulator(problem).run(rows).step_time_us
  best_us = np.inf
  for row, us in zip(rows, times, strict=True):
    taken = [tracker.offer_if_better(row) for tracker in trackers]
    assert taken == [us < best_us] * 2
    best_us = min(best_us, us)
  for tracker in trackers:
    assert tracker.best[1].step_time_us == best_us
    assert [p.step_time_us for p in tracker.history][-1] == best_us
  # Where it is better, the simulator evaluates it in full, too.
  improvements = len(trackers[0].history)
  assert trackers[1].evaluations == 60
  assert trackers[0].evaluations == 60
  assert 1 < improvements < 60
