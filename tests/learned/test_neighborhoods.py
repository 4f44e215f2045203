"""Decisions that a sample of `ordered` may change."""

import numpy as np
import pytest

from tests.testing.policy_problems import (
  UniformPolicy,
  gpus,
  problem_of,
  random_graph,
)
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
  neighborhoods = Neighborhoods(tables)
  rng = np.random.default_rng(0)
  assert all(neighborhoods.is_whole(number, rng) for number in range(5))
  later = [neighborhoods.is_whole(number, rng) for number in range(5, 1005)]
  assert 25 < sum(later) < 80
  moves = [neighborhoods.whole(number) for number in range(5)]
  assert all(move.free.all() for move in moves)
  assert [move.temperature for move in moves[:4]] == [0.0, 0.0, 0.0, 0.5]


def test_others_change_windows_layers_and_what_is_promising(tables):
  neighborhoods = Neighborhoods(tables)
  rng = np.random.default_rng(0)
  promise = np.full(200, -30.0)
  promise[::7] = 0.0  # Neither a window nor a layer.
  kinds = {"window": 0, "layer": 0, "pair": 0, "promising": 0}
  for _ in range(400):
    free = neighborhoods.sample(promise, rng).free
    assert free.any()
    which = np.flatnonzero(free)
    layers, pairs = set(tables.layer[which]), set(tables.pair[which])
    if len(which) > 1 and (which[:29] % 7 == 0).all():
      assert len(which) in (2, 8, 32)
      kinds["promising"] += 1
    elif len(layers) == 1 and len(which) == 20:
      kinds["layer"] += 1
    elif len(pairs) == 1 and len(which) == 10:
      kinds["pair"] += 1
    elif (np.diff(which) == 1).all():  # consecutive in time
      assert len(which) <= 97
      kinds["window"] += 1
    else:
      assert len(which) == 32  # 29 that are promising and three others
      kinds["promising"] += 1
  assert min(kinds.values()) > 50, kinds


def based(num_ops=200, seed=3, sizes=(200,)):
  problem = problem_of(random_graph(num_ops, seed=seed), gpus(3))
  rng = np.random.default_rng(0)
  base = rng.integers(0, 3, problem.num_groups)[problem.group_of]
  return base.astype(np.int32), OrderedProposer(problem, UniformPolicy(*sizes))


def test_a_change_that_was_tried_is_less_likely():
  base, proposer = based(60, sizes=(8,))
  (one,) = proposer.passes
  rng = np.random.default_rng(0)
  seen = {one._single(base, rng).tobytes() for _ in range(16)}
  assert len(seen) >= 12  # of 16 changes: 8 decisions, two other devices
  moved = base.copy()
  moved[:30] = (base[:30] + 1) % 3
  before = one._tries.copy()
  one._based(moved)  # Another base: what failed may now succeed.
  assert one._tries.sum() == before.sum() / 2


def test_a_similar_base_needs_no_new_ratings(monkeypatch):
  base, proposer = based()
  (one,) = proposer.passes
  rng = np.random.default_rng(0)
  one._single(base, rng)
  monkeypatch.setattr(one.tables, "based_on", None)  # It is not called again.
  near = base.copy()
  near[:9] = 0
  changed = one._single(near, rng)
  assert 1 <= (changed != near).sum() < 5  # of the new base, not of the old
  far = base.copy()
  far[:60] = (base[:60] + 1) % 3
  with pytest.raises(TypeError):
    one._single(far, rng)
