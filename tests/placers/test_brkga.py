import numpy as np
import pytest

from tests.testing import exact, problems
from tfplace.graph import Problem
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search import brkga
from tfplace.placers.search.brkga import Decoder, evolve


def run(problem, evaluations, seed=0):
  return place(problem, "brkga", seed=seed, max_evaluations=evaluations)


def test_decoder_by_hand():
  # 30 bytes each, 60 on d0 and 40 on d1. Turns: o2, o0, o1. o2 and o0 want d0
  # and fit; o1 wants it too, and has to take d1.
  problem = Problem(
    problems.graph([1.0] * 3, [], persistent_bytes=[30.0] * 3),
    problems.cluster([60.0, 40.0]),
  )
  decoder = Decoder(GroupGraph(problem))
  assert decoder.shape == (3, 3)
  keys = np.array([[0.9, 0.1, 0.5], [0.8, 0.2, 0.1], [0.7, 0.6, 0.9]])
  assert decoder.decode(keys.astype(np.float32)).tolist() == [0, 1, 0]
  keys[:, 2] = [0.5, 0.9, 0.1]  # now o2 comes last
  assert decoder.decode(keys.astype(np.float32)).tolist() == [0, 0, 1]


def test_evolution_keeps_the_elite_and_mixes_it_with_the_rest():
  keys = np.repeat(np.arange(100.0, dtype=np.float32), 600)
  keys = keys.reshape(100, 200, 3)
  evolve(keys, np.random.default_rng(0))
  assert (keys[:20] == np.arange(20)[:, None, None]).all()
  for child in keys[20:85]:
    low, high = np.unique(child)  # two parents, and nothing else
    assert low < 20 <= high
    # 600 keys with a chance of 0.7 each: 4 standard deviations are 0.075.
    assert abs((child == low).mean() - 0.7) < 0.075
  assert ((keys[85:] >= 0) & (keys[85:] < 1)).all()
  assert len(np.unique(keys[85:])) > 8900


@pytest.mark.parametrize("seed", range(3))
def test_optimum_of_an_easy_problem_is_found_from_random_keys(seed):
  problem = problems.two_halves()
  result = run(problem, 1000, seed)
  assert result.evaluation.step_time_us == exact.optimum(problem) == 6.0


def test_many_groups_are_co_placed(monkeypatch):
  # Three chains of 20 ops, each a group of only consumers.
  edges = [(i, i + 1) for i in range(59) if i % 20 != 19]
  problem = Problem(
    problems.graph([1.0] * 60, edges), problems.cluster([np.inf] * 3)
  )
  alone = run(problem, 1).placement.devices
  assert len(np.unique(alone[:20])) == 3
  monkeypatch.setattr(brkga, "_MAX_GROUPS", 10)
  devices = run(problem, 100).placement.devices.reshape(3, 20)
  assert (devices == devices[:, :1]).all()
  assert sorted(devices[:, 0]) == [0, 1, 2]


def test_memory_is_repaired_where_no_vector_fits():
  # The decoder does not see what o0 holds while it runs: 25 + 100 bytes are
  # too many for d0, so that half of the vectors do not fit.
  problem = Problem(
    problems.graph(
      [1.0] * 4,
      [(0, 1), (1, 2), (2, 3)],
      persistent_bytes=[25.0] * 4,
      temp_bytes=[100.0, 0.0, 0.0, 0.0],
    ),
    problems.cluster([110.0, 200.0]),
  )
  results = [run(problem, 1, seed) for seed in range(10)]
  assert all(result.placement.devices[0] == 1 for result in results)
  assert {result.evaluations > 1 for result in results} == {True, False}
