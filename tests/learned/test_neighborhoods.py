"""Decisions that a sample of `ordered` may change."""

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.learned.decisions import group_decisions
from tfplace.learned.ordered.neighborhoods import Neighborhoods
from tfplace.learned.ordered.tables import partial_tables


@pytest.fixture
def tables():
  problem = problem_of(random_graph(200, seed=2), gpus(3))
  found = partial_tables(group_decisions(problem))
  layer = np.arange(200) // 20
  pair = np.arange(200) // 10
  return found._replace(layer=layer, pair=pair)


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
