"""Coarse groups, the critical path, and the search over both."""

import numba
import numpy as np
import pytest

from tests.testing import problems
from tfplace.graph import Problem
from tfplace.graph.budget import Budget
from tfplace.placers.groups import GroupGraph
from tfplace.placers.merge import coarse_levels, merged
from tfplace.placers.search import moves
from tfplace.placers.search import search as search_module
from tfplace.placers.search.chain import Chain
from tfplace.placers.search.search import Search
from tfplace.placers.search.state import (
  CURRENT,
  PATH,
  search_state,
  search_tables,
)
from tfplace.simulate import Simulator, engine


# Functions that only kernels call have no entry from Python.
@numba.njit
def trace(tables, state):
  moves.trace(tables, state)


def random_problem(seed, num_ops=60, edges=150):
  rng = np.random.default_rng(seed)
  pairs = {
    tuple(sorted(rng.choice(num_ops, 2, replace=False))) for _ in range(edges)
  }
  return Problem(
    problems.graph(
      [float(t) for t in rng.integers(1, 6, num_ops)],
      sorted(pairs),
      output_bytes=[(float(size),) for size in rng.integers(0, 9, num_ops)],
    ),
    problems.cluster([np.inf] * 3, bandwidth=10.0, latency=1.0),
  )


def traced(problem, devices):
  """A chain's state at one placement, with its critical path."""
  groups = GroupGraph(problem)
  tables = search_tables(groups, coarse_levels(groups))
  state = search_state(groups, np.array(devices), np.random.SeedSequence(0))
  Chain(state, tables, engine.pack(problem), 1.0).restart(state.devices)
  trace(tables, state)
  return state, state.path[: state.counts[PATH]].tolist()


def test_moves_go_to_devices_by_their_speed():
  # Two groups for two GPUs and a CPU, of different use to each.
  devices = problems.cluster([np.inf] * 3, kinds=["GPU", "GPU", "CPU"])
  times = [{"GPU": 10.0, "CPU": 1000.0}, {"GPU": 30.0, "CPU": 60.0}]
  groups = GroupGraph(Problem(problems.graph(times, [(0, 1)]), devices))
  together = np.zeros(2, int)  # one coarse group of two
  odds = search_tables(groups, [together]).odds
  # Alone, and both as one coarse group: 40 us on a GPU, 1060 on the CPU.
  np.testing.assert_allclose(odds[0], [1, 1, 0.01], rtol=1e-3)
  np.testing.assert_allclose(odds[1], [1, 1, 0.5], rtol=1e-3)
  np.testing.assert_allclose(odds[-1], [1, 1, 40 / 1060], rtol=1e-3)


def test_critical_path_by_hand():
  # d0: o0 [0, 4], o1 [4, 6]; o0's 10 bytes reach d1 at 4 + 10/10 + 1 = 6,
  # where o2 runs [6, 9] and o3, which waits for o2, [9, 14].
  problem = Problem(
    problems.graph(
      [4.0, 2.0, 3.0, 5.0], [(0, 2), (2, 3)], output_bytes=[(10.0,)] * 4
    ),
    problems.cluster([np.inf] * 2, bandwidth=10.0, latency=1.0),
  )
  state, path = traced(problem, [0, 0, 1, 1])
  assert state.numbers[CURRENT] == 14.0
  assert path == [3, 2, 0]


@pytest.mark.parametrize("seed", range(8))
def test_critical_path_accounts_for_the_whole_step(seed):
  problem = random_problem(seed, 8, 9)
  devices = np.random.default_rng(seed).integers(0, 3, 8)
  state, path = traced(problem, devices)
  starts = state.start_us[path]
  assert len(set(path)) == len(path)
  assert (np.diff(starts) <= 0).all()
  assert starts[-1] == 0.0
  ends = state.start_us + problem.time_us[np.arange(8), devices]
  assert ends[path[0]] == ends.max()


def test_coarse_groups_keep_a_device_for_all_members():
  for seed in range(10):
    groups = GroupGraph(problems.random_problem(seed))
    for label in coarse_levels(groups):
      for number in range(label.max() + 1):
        assert groups.allowed[label == number].all(axis=0).any()


def merged_slowly(problem, target):
  """The rule of `merged`, said with dictionaries; every op is a group."""
  graph = problem.graph
  links = {g: {} for g in range(problem.num_groups)}
  for a, b, size in zip(
    graph.edge_src.tolist(),
    graph.edge_dst.tolist(),
    graph.edge_bytes.tolist(),
    strict=True,
  ):
    links[a][b] = links[a].get(b, 0.0) + size
    links[b][a] = links[a][b]
  work = problem.fastest_us.tolist()
  members = {g: [g] for g in links}
  limit = 2 * sum(work) / target
  stuck = set()
  while len(members) > target and len(stuck) < len(members):
    group = min(members.keys() - stuck, key=lambda g: (work[g], g))
    near = [g for g in links[group] if work[g] + work[group] <= limit]
    if not near:
      stuck.add(group)
      continue
    into = min(near, key=lambda g: (-links[group][g], work[g], g))
    work[into] += work[group]
    stuck.discard(into)
    members[into] += members.pop(group)
    for other, size in links.pop(group).items():
      del links[other][group]
      if other != into:
        links[into][other] = links[into].get(other, 0.0) + size
        links[other][into] = links[into][other]
  parent = np.empty(problem.num_groups, int)
  for group, all_of_it in members.items():
    parent[all_of_it] = group
  return parent


@pytest.mark.parametrize("seed", range(5))
def test_groups_merge_as_the_rule_says(seed):
  problem = random_problem(seed)
  targets = (20, 6)
  for target, found in zip(targets, merged(problem, targets), strict=True):
    np.testing.assert_array_equal(found, merged_slowly(problem, target))


@pytest.fixture
def large(monkeypatch):
  """All graphs are swept, and chains combine their changes."""
  monkeypatch.setattr(search_module, "_LARGE", 1)


def searched(problem, evaluations, seed=0, chains=2):
  """Searches from all groups on the first device."""
  groups = GroupGraph(problem)
  search = Search(groups, seed, chains=chains)
  start = np.zeros(groups.num_groups, np.int32)
  search.run([start], Budget(60, max_evaluations=evaluations))
  return search


def test_a_sweep_moves_whole_parts_at_once(large):
  # Two chains of 40 us without an edge between them: moving any one op costs
  # more than it gains; moving a chain halves the step.
  length = 40
  edges = [(i, i + 1) for i in range(length - 1)]
  edges += [(a + length, b + length) for a, b in edges]
  problem = Problem(
    problems.graph(
      [1.0] * (2 * length), edges, output_bytes=[(1000.0,)] * (2 * length)
    ),
    problems.cluster([np.inf] * 2, bandwidth=10.0),
  )
  search = searched(problem, 600)
  assert search.best_us == 40.0
  assert search.evaluations <= 600


@pytest.mark.parametrize("evaluations", [1, 130])
@pytest.mark.parametrize("chains", [1, 3])
def test_a_large_search_keeps_to_its_evaluations(large, evaluations, chains):
  problem = random_problem(0)
  first, again = (
    searched(problem, evaluations, seed=3, chains=chains) for _ in range(2)
  )
  assert first.evaluations <= evaluations + 4 * chains  # rounds begin with one
  assert first.best_us == again.best_us  # the seed alone decides
  assert first.best.tolist() == again.best.tolist()
  alone = np.zeros((1, 60), np.int32)
  assert first.best_us <= Simulator(problem).run(alone).step_time_us[0]
  devices = GroupGraph(problem).expand(first.best)[None]
  assert Simulator(problem).run(devices).step_time_us[0] == first.best_us


def test_ties_between_chains_do_not_depend_on_threads():
  # Equal ops: thousands of placements share the best step time.
  problem = Problem(
    problems.graph([1.0] * 30, [(i, i + 3) for i in range(27)]),
    problems.cluster([np.inf] * 3, latency=0.5),
  )
  found = [searched(problem, 30_000, seed=1) for _ in range(4)]
  for other in found:
    assert other.best.tolist() == found[0].best.tolist()
    assert other.evaluations == found[0].evaluations
