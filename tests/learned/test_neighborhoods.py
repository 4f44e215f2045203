"""Which decisions a sample of `ordered` may change."""

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned.decisions import group_decisions
from tfplace.learned.ordered.neighborhoods import Neighborhoods
from tfplace.learned.ordered.placer import OrderedProposer
from tfplace.learned.ordered.tables import partial_tables


@pytest.fixture
def tables():
  problem = problem_of(random_graph(200, seed=2), gpus(3))
  found = partial_tables(group_decisions(problem))
  layer = np.arange(200) // 20
  pair = np.arange(200) // 10
  return found._replace(layer=layer, pair=pair)


def test_the_first_samples_may_change_everything(tables):
  drawn = Neighborhoods(tables)
  rng = np.random.default_rng(0)
  moves = [drawn.draw(number, rng) for number in range(20)]
  assert all(move.free.all() for move in moves)
  assert [move.temperature for move in moves[:4]] == [0.0, 0.0, 0.0, 0.5]


def test_later_samples_mostly_change_windows_and_layers(tables):
  drawn = Neighborhoods(tables)
  rng = np.random.default_rng(0)
  kinds = {"everything": 0, "window": 0, "layer": 0, "pair": 0}
  for number in range(20, 820):
    free = drawn.draw(number, rng).free
    assert free.any()
    which = np.flatnonzero(free)
    if free.all():
      kinds["everything"] += 1
    elif set(tables.layer[which]) == {tables.layer[which[0]]} and (
      len(which) == 20
    ):
      kinds["layer"] += 1
    elif set(tables.pair[which]) == {tables.pair[which[0]]} and (
      len(which) == 10
    ):
      kinds["pair"] += 1
    else:
      assert (np.diff(which) == 1).all()  # consecutive in time
      assert len(which) <= 97
      kinds["window"] += 1
  assert 40 < kinds["everything"] < 140
  assert min(kinds["window"], kinds["layer"], kinds["pair"]) > 150


@pytest.mark.parametrize("label", [np.zeros(200, int), np.arange(200)])
def test_labels_that_tell_nothing_are_no_neighborhoods(tables, label):
  drawn = Neighborhoods(tables._replace(layer=label, pair=label))
  rng = np.random.default_rng(0)
  for _ in range(50):
    which = np.flatnonzero(drawn.some(rng))
    assert (np.diff(which) == 1).all()
    assert 4 <= len(which) <= 96  # half of a window at the ends


def test_what_is_not_free_stays_where_it_is():
  problem = problem_of(random_graph(200, seed=3), gpus(3))
  rng = np.random.default_rng(0)
  base = rng.integers(0, 3, problem.num_groups)[problem.group_of]
  base = base.astype(np.int32)
  proposer = OrderedProposer(problem, None, [None])
  for number in range(20, 60):
    seed = np.random.default_rng(number)
    devices = proposer.propose(base, number, seed)
    # The same draws say what was free.
    move = Neighborhoods(proposer.passes[0]._tables).draw(
      number, np.random.default_rng(number)
    )
    decisions = proposer.passes[0].decisions
    kept = ~move.free[decisions.decision_of]
    assert (devices[kept] == base[kept]).all()
