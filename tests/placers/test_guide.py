"""Rated moves: how they are drawn, and how large their share is."""

import numpy as np
import pytest

from tests.placers.test_proposals import searched, wide_problem
from tfplace.core.budget import Budget
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search import guide
from tfplace.placers.search.guide import RATED, Guided
from tfplace.placers.search.state import time_order


@pytest.fixture(autouse=True)
def eager(monkeypatch):
  """Rates with each call."""
  monkeypatch.setattr(guide, "RATING_SHARE", 1e9)


class Rates:
  """Rates two sets of moves: halves of the ops, and single ops."""

  def __init__(self, num_ops, *ratings):
    self.labels = np.arange(num_ops) * 2 // num_ops, np.arange(num_ops)
    self.ratings, self.asked = ratings, []

  def rate(self, number, devices):
    self.asked.append((number, devices.copy()))
    return self.ratings[number]

  def propose(self, devices, number, rng):
    return devices


def rated(num_ops, halves, single):
  """A problem, and a guide with the given [parts, devices] ratings."""
  problem = wide_problem(num_ops=num_ops)
  groups = GroupGraph(problem)
  order = time_order(groups)
  rater = Rates(num_ops, halves, single)
  return problem, order, rater, Guided(rater, groups, order)


def test_sets_are_drawn_equally_and_moves_by_their_rating():
  halves, single = np.zeros((2, 4)), np.zeros((400, 4))
  halves[0, 1] = 0.1
  single[:, 2] = 0.1
  single[9, 2] = 10.0
  _, _, _, guided = rated(400, halves, single)
  guided.update(np.zeros(400, np.int32))
  weight = np.diff(guided.guide.total, prepend=0.0)
  assert weight[1] == pytest.approx(1.0)
  assert weight[8:].sum() == pytest.approx(1.0)
  at = 8 + 4 * 9 + 2
  assert weight[at] == pytest.approx(10.0 / (10.0 + 39.9))
  guided.guide.tries[at] = 2.0
  for _ in range(2):  # one set each
    guided.update(np.zeros(400, np.int32))
  assert guided.guide.tries[at] == 1.0  # They count half with the next rating.
  weight = np.diff(guided.guide.total, prepend=0.0)
  assert weight[at] == pytest.approx(4.9 / (4.9 + 39.9))


@pytest.mark.parametrize(
  "tally, share",
  [
    ([[0.0, 19.0], [1.0, 900.0]], 0.5),  # too few to compare
    ([[0.0, 100.0], [1.0, 100.0]], 0.1),
    ([[1.0, 100.0], [0.0, 100.0]], 0.8),
    ([[2.0, 100.0], [2.0, 300.0]], 0.75),
  ],
)
def test_the_share_follows_the_gains(tally, share):
  ones = np.ones((2, 4)), np.ones((400, 4))
  _, _, _, guided = rated(400, *ones)
  guided.guide.tally[:] = tally
  guided.update(np.zeros(400, np.int32))
  assert guided.guide.share[0] == pytest.approx(share)
  np.testing.assert_allclose(guided.guide.tally, 0.9 * np.array(tally))


def test_a_search_draws_rated_moves_if_seconds_are_its_budget():
  problem = wide_problem(4)
  rater = Rates(400, np.ones((2, 4)), np.ones((400, 4)))
  searched(problem, rater, Budget(1e4, 2000))
  assert not rater.asked  # Results must not depend on the machine.
  search = searched(problem, rater, Budget(0.5))
  assert rater.asked
  assert all(chain.guide.tally[RATED, 1] > 0 for chain in search._chains)
