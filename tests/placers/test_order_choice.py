"""The order of ops is chosen with the placement, where that is asked for."""

import numpy as np
import pytest

import tfplace
from tests.testing.split_steps import split_graph, two_stages
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph import Problem
from tfplace.graph.budget import Budget
from tfplace.placers import registry
from tfplace.placers.one_shot import placed_once
from tfplace.simulate import Simulator


@pytest.mark.parametrize("strategy", ["m_topo", "annealing"])
def test_auto_takes_rank_where_it_gains(strategy):
  result = tfplace.place(
    two_stages(), strategy, budget_s=1.0, order="auto", max_evaluations=50
  )
  assert result.order == "rank"
  assert result.evaluation.step_time_us == 11
  assert result.other_order_us == 13


@pytest.mark.parametrize("strategy", ["m_topo", "annealing", "auto"])
def test_auto_stays_with_arrival_where_rank_gains_too_little(strategy):
  # 2 us of 1012 are 0.2%.
  result = tfplace.place(
    two_stages(update_us=1000.0), strategy, order="auto", max_evaluations=50
  )
  assert result.order == "arrival"
  assert result.evaluation.step_time_us == 1012
  assert result.other_order_us == 1010
  assert result.history[-1].step_time_us == 1012
  assert {tried.order for tried in result.tried} <= {"arrival"}


@pytest.mark.parametrize("strategy", ["m_topo", "annealing"])
def test_auto_takes_rank_where_only_that_fits_in_memory(strategy):
  problem = two_stages(update_us=1000.0, memory=14.0)
  with pytest.raises(InfeasibleError):
    tfplace.place(problem, strategy, budget_s=1.0)
  result = tfplace.place(problem, strategy, order="auto", max_evaluations=50)
  assert result.order == "rank" and result.evaluation.feasible
  assert result.other_order_us == np.inf


def test_a_search_in_both_orders_keeps_budget_and_seed():
  graph, _ = split_graph()
  problem = Problem(graph, tfplace.cluster_preset("v100x2"))
  found = [
    tfplace.place(
      problem, "annealing", seed=3, max_evaluations=400, order="auto"
    )
    for _ in range(2)
  ]
  for result in found:
    judge = Simulator(problem.in_order(result.order))
    (evaluation,) = judge.evaluate(result.placement.devices[None])
    assert evaluation.step_time_us == result.evaluation.step_time_us
    assert result.evaluations <= 440  # starts may exceed a trial's share
    us = [point.step_time_us for point in result.history]
    assert us == sorted(us, reverse=True)
    assert us[-1] == result.evaluation.step_time_us
  one, other = found
  assert one.placement.assignments == other.placement.assignments
  assert one.order == other.order


def test_an_evaluator_judges_in_its_own_order():
  problem = two_stages()
  judge = Simulator(problem)
  with pytest.raises(TfplaceError, match=r"'rank'.*'arrival'"):
    tfplace.place(problem, "m_topo", evaluator=judge, order="rank")


class Counting:
  """A placer that counts how often it is asked."""

  name = "counting"

  def __init__(self):
    self.asked = 0

  def place(self, problem, evaluator, budget, seed):
    self.asked += 1
    placer = registry.get_placer("m_topo")
    return placer.place(problem, evaluator, budget, seed)


def test_a_placer_is_asked_once_for_each_order_and_seed():
  problem, placer = two_stages(), Counting()
  by_rank = problem.in_order("rank")
  narrow = problem.without_cpus(np.zeros(problem.graph.num_ops, bool))

  def ask(of, budget, seed=0):
    return placed_once(placer, of, Simulator(of), budget, seed)

  first = ask(problem, Budget(10.0))
  again = ask(problem, Budget(10.0))
  assert placer.asked == 1
  assert again.placement.devices.tolist() == first.placement.devices.tolist()
  assert again.evaluation == first.evaluation
  assert again.evaluations == 0 and again.seconds == 0
  assert again.history[-1].step_time_us == first.evaluation.step_time_us
  for count, of, seed in ((2, by_rank, 0), (3, problem, 1), (4, narrow, 0)):
    for _ in range(2):
      assert ask(of, Budget(10.0), seed).placement.problem is of
      assert placer.asked == count
  # A number of evaluations does not depend on what was asked before.
  ask(problem, Budget(10.0, max_evaluations=9))
  assert placer.asked == 5


def test_what_time_limited_is_asked_again():
  problem, placer = two_stages(), Counting()
  for _ in range(2):
    placed_once(placer, problem, Simulator(problem), Budget(0.0), 0)
  assert placer.asked == 2


def test_each_judge_is_asked_for_itself():
  problem, placer = two_stages(), Counting()
  slower = two_stages(update_us=9.0)
  placed_once(placer, problem, Simulator(problem), Budget(10.0), 0)
  found = placed_once(placer, problem, Simulator(slower), Budget(10.0), 0)
  assert placer.asked == 2
  assert found.evaluation.step_time_us > 14
