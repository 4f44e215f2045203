"""Merged groups and the greedy sweeps over them."""

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.placers.groups import GroupGraph
from tfplace.placers.merge import merged
from tfplace.placers.search.schedule import SearchConfig
from tfplace.placers.search.search import Search
from tfplace.simulate import Simulator

LARGE = SearchConfig(coarse_groups=1)


def random_problem(seed, num_ops=60):
  rng = np.random.default_rng(seed)
  edges = {
    tuple(sorted(rng.choice(num_ops, 2, replace=False))) for _ in range(150)
  }
  return Problem(
    problems.graph(
      [float(t) for t in rng.integers(1, 6, num_ops)],
      sorted(edges),
      output_bytes=[(float(size),) for size in rng.integers(0, 9, num_ops)],
    ),
    problems.cluster([np.inf] * 3, bandwidth=10.0, latency=1.0),
  )


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


def towers(length=40):
  """Two chains without an edge between them: 40 us each, or 80 on one device.

  Moving any one op of a chain costs more than it gains; moving it all halves
  the step.
  """
  edges = [(i, i + 1) for i in range(length - 1)]
  edges += [(a + length, b + length) for a, b in edges]
  return Problem(
    problems.graph(
      [1.0] * (2 * length), edges, output_bytes=[(1000.0,)] * (2 * length)
    ),
    problems.cluster([np.inf] * 2, bandwidth=10.0),
  )


def test_a_sweep_moves_whole_parts_at_once():
  problem = towers()
  groups = GroupGraph(problem)
  search = Search(groups, 0, config=LARGE)
  start = np.zeros(groups.num_groups, np.int32)
  search.run([start], Budget(60, max_evaluations=600))
  assert search.best_us == 40.0
  assert search.evaluations <= 608


@pytest.mark.parametrize("evaluations", [1, 130])
def test_a_large_search_keeps_to_its_evaluations(evaluations):
  problem = random_problem(0)
  groups = GroupGraph(problem)
  start = np.zeros(groups.num_groups, np.int32)
  found = []
  for _ in range(2):
    search = Search(groups, 3, config=LARGE)
    search.run([start], Budget(60, max_evaluations=evaluations))
    assert search.evaluations <= evaluations + 8  # rounds begin with one
    found.append((search.best_us, search.best.tolist()))
  assert found[0] == found[1]  # the seed alone decides
  single_us = Simulator(problem).run(start[None]).step_time_us[0]
  assert found[0][0] <= single_us
