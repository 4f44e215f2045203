"""Searched placements lose what the search did for no reason."""

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator, core
from tfplace.core.budget import Budget
from tfplace.learned.train import demonstrations
from tfplace.placers.registry import get_placer


def two_chains(memory_bytes=1e9):
  """Two chains of four 10 us ops, and twenty ops that take no time."""
  ops, edges = [], []
  for chain in range(2):
    for i in range(4):
      ops.append(
        core.OpSpec(f"c{chain}/{i}", "MatMul", {"GPU": 10.0}, [4.0], 5.0)
      )
      if i:
        edges.append((len(ops) - 2, 0, len(ops) - 1))
  for i in range(20):
    ops.append(core.OpSpec(f"idle{i}", "NoOp", {"GPU": 0.0}, [0.0]))
  graph = core.build_graph("chains", ops, edges)
  return problem_of(graph, gpus(2, memory_bytes=memory_bytes))


def test_what_shortens_the_step_stays_and_the_rest_goes_back():
  problem = two_chains()
  simple = np.zeros(28, np.int32)
  noise = np.random.default_rng(0).integers(0, 2, 20)
  # A chain on each GPU; the names of the GPUs are swapped.
  searched = np.array([1] * 4 + [0] * 4 + noise.tolist(), np.int32)
  found, spent = demonstrations.simplified(problem, searched, simple)
  before, after = (
    Simulator(problem).run(np.stack([searched, found])).step_time_us
  )
  assert after == before
  # One chain is where it was, the other one is not, and nothing else moved.
  chains = found[:4].tolist(), found[4:8].tolist()
  assert sorted(chains) == [[0] * 4, [1] * 4]
  assert (found[8:] == 0).all()
  assert 0 < spent < demonstrations.DemonstrationConfig.max_evaluations


def test_what_only_memory_asks_for_stays():
  # All on one GPU needs 8 * 5 bytes at least, and there are 30.
  problem = two_chains(memory_bytes=30.0)
  simple = np.zeros(28, np.int32)
  searched = np.array([0] * 4 + [1] * 4 + [0] * 20, np.int32)
  found, _ = demonstrations.simplified(problem, searched, simple)
  assert Simulator(problem).run(found[None]).feasible.all()


@pytest.mark.parametrize("seed", range(4))
def test_it_costs_a_hundredth_at_most_and_ends_nearer(seed):
  problem = problem_of(random_graph(120, seed=seed), gpus(3))
  simulator = Simulator(problem)
  simple = get_placer("blocks").place(problem, simulator, Budget(9), 0)
  searched = get_placer("annealing").place(
    problem, simulator, Budget(60, 3000), 0
  )
  found, _ = demonstrations.simplified(
    problem, searched.placement.devices, simple.placement.devices
  )
  before, after = simulator.run(
    np.stack([searched.placement.devices, found])
  ).step_time_us
  assert after <= 1.01 * before
  away = (found != simple.placement.devices).sum()
  assert away <= (searched.placement.devices != simple.placement.devices).sum()
