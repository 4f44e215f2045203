import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Problem
from tfplace.placers import Budget, place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search.brkga import (
  BrkgaConfig,
  BrkgaPlacer,
  Decoder,
  evolve,
)
from tfplace.simulate import Simulator


def run(problem, evaluations, seed=0, config=None):
  placer = BrkgaPlacer(config or BrkgaConfig())
  budget = Budget(60, max_evaluations=evaluations)
  return placer.place(problem, Simulator(problem), budget, seed)


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


def test_decoder_takes_the_roomiest_where_nothing_has_room():
  problem = Problem(
    problems.graph([1.0], [], persistent_bytes=[90.0]),
    problems.cluster([60.0, 70.0]),
  )
  decoder = Decoder(GroupGraph(problem))
  assert decoder.decode(np.array([[0.9, 0.1, 0.5]], np.float32)).tolist() == [1]


def test_decoder_leaves_slower_kinds_to_what_needs_them():
  problem = Problem(
    problems.graph([{"CPU": 9.0, "GPU": 1.0}, {"CPU": 1.0}], []),
    problems.cluster([np.inf] * 2, kinds=["CPU", "GPU"]),
  )
  decoder = Decoder(GroupGraph(problem))
  keys = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]], np.float32)
  assert decoder.decode(keys).tolist() == [1, 0]


def test_evolution_keeps_the_elite_and_mixes_it_with_the_rest():
  config = BrkgaConfig(population=20, elite=0.2, mutants=0.25, bias=0.7)
  keys = np.repeat(np.arange(20.0, dtype=np.float32), 600).reshape(20, 200, 3)
  evolve(keys, config, np.random.default_rng(0))
  assert (keys[:4] == np.arange(4)[:, None, None]).all()
  for child in keys[4:15]:
    low, high = np.unique(child)  # two parents, and nothing else
    assert low < 4 <= high
    # 600 keys with a chance of 0.7 each: 4 standard deviations are 0.075.
    assert abs((child == low).mean() - 0.7) < 0.075
  assert ((keys[15:] >= 0) & (keys[15:] < 1)).all()
  assert len(np.unique(keys[15:])) > 2900


@pytest.mark.parametrize("seed", range(3))
def test_optimum_of_an_easy_problem_is_found_from_random_keys(seed):
  problem = problems.two_halves()
  result = run(problem, 1000, seed)
  assert result.evaluation.step_time_us == problems.optimum(problem) == 6.0


@pytest.mark.parametrize("seed", range(15))
def test_never_below_the_optimum(seed):
  problem = problems.small_problem(seed)
  step = run(problem, 200, seed).evaluation.step_time_us
  assert step >= problems.optimum(problem) * (1 - 1e-12)


@pytest.mark.parametrize("evaluations", [1, 7, 100, 123, 300])
def test_evaluations_are_as_many_as_allowed(evaluations):
  assert run(problems.two_halves(), evaluations).evaluations == evaluations


def test_seed_decides():
  rng = np.random.default_rng(0)
  problem = Problem(
    problems.graph(
      list(rng.uniform(1, 9, 60)), [(i, i + 2) for i in range(58)]
    ),
    problems.cluster([np.inf] * 3),
  )
  first, again = run(problem, 250, 4), run(problem, 250, 4)
  assert (first.placement.devices == again.placement.devices).all()
  other = run(problem, 250, 5)
  assert (first.placement.devices != other.placement.devices).any()


def test_evolution_beats_as_many_random_vectors():
  rng = np.random.default_rng(1)
  problem = Problem(
    problems.graph(
      list(rng.uniform(1, 9, 80)), [(i, i + 4) for i in range(76)]
    ),
    problems.cluster([np.inf] * 4, latency=3.0),
  )
  evolved = run(problem, 3000).evaluation.step_time_us
  config = BrkgaConfig(population=3000)  # all of them in the first generation
  random = run(problem, 3000, config=config).evaluation.step_time_us
  assert evolved < 0.95 * random


def test_many_groups_are_co_placed():
  # Three chains of 20 ops, each a group of only consumers.
  edges = [(i, i + 1) for i in range(59) if i % 20 != 19]
  problem = Problem(
    problems.graph([1.0] * 60, edges), problems.cluster([np.inf] * 3)
  )
  config = BrkgaConfig(max_groups=10)
  devices = run(problem, 100, config=config).placement.devices.reshape(3, 20)
  assert (devices == devices[:, :1]).all()
  assert sorted(devices[:, 0]) == [0, 1, 2]
  alone = run(problem, 1, config=BrkgaConfig(max_groups=60)).placement.devices
  assert len(np.unique(alone[:20])) == 3


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


def test_one_placement_is_tried_no_longer_than_needed():
  # Each op runs on one device only; what moves between them is in no bound.
  problem = Problem(
    problems.graph(
      [{"GPU": 3.0}, {"CPU": 3.0}], [(0, 1)], output_bytes=[(50.0,)] * 2
    ),
    problems.cluster([np.inf] * 2, kinds=["GPU", "CPU"]),
  )
  result = place(problem, "brkga", budget_s=600)
  assert result.evaluations == 100
  assert result.seconds < 600
