import itertools

import numba
import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.placers.coarsen import (
  Coarsening,
  coarsen_by_edges,
  coarsen_by_work,
)
from tfplace.placers.groups import GroupGraph
from tfplace.placers.search import moves
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.moves import LOCAL, REMOTE
from tfplace.placers.search.schedule import scale_of
from tfplace.placers.search.search import Search
from tfplace.placers.search.state import (
  CURRENT,
  PATH,
  search_state,
  search_tables,
)
from tfplace.simulate import engine


# Functions that only kernels call have no entry from Python.
@numba.njit
def trace(tables, state):
  moves.trace(tables, state)


def tiny_problem(seed):
  """Eight ops on two or three devices, some of them too small for all."""
  rng = np.random.default_rng(seed)
  edges = {tuple(sorted(rng.choice(8, 2, replace=False))) for _ in range(9)}
  return Problem(
    problems.graph(
      list(rng.uniform(1, 9, 8)),
      sorted(edges),
      output_bytes=[(float(size),) for size in rng.integers(0, 20, 8)],
      persistent_bytes=list(rng.integers(0, 10, 8).astype(float)),
    ),
    problems.cluster(
      [np.inf, 30.0, 60.0][: int(rng.integers(2, 4))],
      overhead=float(rng.choice([0.0, 0.5])),
      bandwidth=10.0,
      latency=1.0,
    ),
  )


def current(problem, devices):
  """A chain's state at one placement."""
  groups = GroupGraph(problem)
  tables = search_tables(groups, coarsen_by_work(groups))
  state = search_state(groups, np.array(devices), np.random.SeedSequence(0))
  scale = scale_of(groups, False, 0.0)
  chain = Chain(state, tables, engine.pack(problem), scale)
  chain.restart(state.devices)
  return tables, state


TOGETHER = Coarsening((np.zeros(2, int),))  # one coarse group of two


def odds_problem():
  """Two groups for two GPUs and a CPU, of different use to each."""
  devices = problems.cluster([np.inf] * 3, kinds=["GPU", "GPU", "CPU"])
  times = [{"GPU": 10.0, "CPU": 1000.0}, {"GPU": 30.0, "CPU": 60.0}]
  return Problem(problems.graph(times, [(0, 1)]), devices)


def test_moves_go_to_devices_by_their_speed():
  groups = GroupGraph(odds_problem())
  odds = search_tables(groups, TOGETHER).odds
  # Alone, and both as one coarse group: 40 us on a GPU, 1060 on the CPU.
  np.testing.assert_allclose(odds[0], [1, 1, 0.01], rtol=1e-3)
  np.testing.assert_allclose(odds[1], [1, 1, 0.5], rtol=1e-3)
  np.testing.assert_allclose(odds[-1], [1, 1, 40 / 1060], rtol=1e-3)


def test_critical_path_and_its_causes_by_hand():
  # d0: o0 [0, 4], o1 [4, 6]; o0's 10 bytes reach d1 at 4 + 10/10 + 1 = 6,
  # where o2 runs [6, 9] and o3, which waits for o2, [9, 14].
  problem = Problem(
    problems.graph(
      [4.0, 2.0, 3.0, 5.0],
      [(0, 2), (2, 3)],
      output_bytes=[(10.0,)] * 4,
    ),
    problems.cluster([np.inf] * 2, bandwidth=10.0, latency=1.0),
  )
  tables, state = current(problem, [0, 0, 1, 1])
  trace(tables, state)
  assert state.numbers[CURRENT] == 14.0
  path = state.path[: state.counts[PATH]].tolist()
  assert path == [3, 2, 0]
  assert state.cause[:2].tolist() == [LOCAL, REMOTE]


@pytest.mark.parametrize("seed", range(8))
def test_critical_path_accounts_for_the_whole_step(seed):
  problem = tiny_problem(seed)
  rng = np.random.default_rng(seed)
  devices = rng.integers(0, problem.cluster.num_devices, 8)
  tables, state = current(problem, devices)
  trace(tables, state)
  path = state.path[: state.counts[PATH]]
  starts = state.start_us[path]
  assert len(set(path.tolist())) == len(path)
  assert (np.diff(starts) <= 0).all()
  assert starts[-1] == 0.0
  ends = state.start_us + problem.time_us[np.arange(8), devices]
  assert ends[path[0]] == ends.max()


@pytest.mark.parametrize("find", [coarsen_by_edges, coarsen_by_work])
def test_units_join_what_costs_most_to_cut(find):
  # o0 -1000-> o1 -1-> o2 -1000-> o3, equal work: at the first level that
  # holds two ops of the four (a half of the work is too much for any level,
  # so 8 equal chains share it), the heavy edges are inside.
  times, edges, sizes = [], [], []
  for chain in range(8):
    first = 4 * chain
    times += [1.0] * 4
    sizes += [(1000.0,), (1.0,), (1000.0,), (1.0,)]
    edges += [(first, first + 1), (first + 1, first + 2)]
    edges += [(first + 2, first + 3)]
  problem = Problem(
    problems.graph(times, edges, output_bytes=sizes),
    problems.cluster([np.inf] * 2),
  )
  labels = find(GroupGraph(problem)).labels
  pairs = next(label for label in labels if label.max() + 1 == 16)
  for first in range(0, 32, 4):
    assert pairs[first] == pairs[first + 1] != pairs[first + 2]
    assert pairs[first + 2] == pairs[first + 3]


@pytest.mark.parametrize("find", [coarsen_by_edges, coarsen_by_work])
def test_units_are_nested_and_keep_a_device_for_all_members(find):
  for seed in range(10):
    groups = GroupGraph(problems.random_problem(seed))
    labels = find(groups).labels
    for fine, coarse in itertools.pairwise(labels):
      for number in range(fine.max() + 1):
        assert len(set(coarse[fine == number])) == 1
    for label in labels:
      for number in range(label.max() + 1):
        assert groups.allowed[label == number].all(axis=0).any()


def test_ties_between_chains_do_not_depend_on_threads():
  # Equal ops: thousands of placements share the best step time.
  problem = Problem(
    problems.graph([1.0] * 30, [(i, i + 3) for i in range(27)]),
    problems.cluster([np.inf] * 3, latency=0.5),
  )
  groups = GroupGraph(problem)
  found = []
  for _ in range(4):
    search = Search(groups, seed=1)
    budget = Budget(60, max_evaluations=30_000)
    search.run([np.zeros(30, np.int32)], budget)
    assert search.best is not None
    found.append((search.best.tolist(), search.evaluations))
  assert all(other == found[0] for other in found)
