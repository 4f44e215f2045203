"""Choices within what kernels and links allow."""

import itertools

import numpy as np
import problems
import pytest

from tfplace.core import Problem
from tfplace.errors import ProblemError
from tfplace.placers.domains import choose, choose_near
from tfplace.placers.groups import GroupGraph


def is_linked(problem, devices):
  """Whether every edge stays on a device or takes a link."""
  graph, channel = problem.graph, problem.cluster.channel
  src, dst = devices[graph.edge_src], devices[graph.edge_dst]
  return bool(((src == dst) | (channel[src, dst] >= 0)).all())


def test_wishes_hold_where_links_allow_them_by_hand():
  # d0 -> d1 -> d2 only. The first op is on d1 as wanted, so the second cannot
  # be on d0, and is where it runs soonest of d1 and d2: equal, the first.
  groups = GroupGraph(
    Problem(
      problems.graph([1.0] * 3, [(0, 1), (1, 2)]),
      problems.cluster([np.inf] * 3, links=[(0, 1), (1, 2)]),
    )
  )
  found = choose_near(groups, np.array([1, 0, 2]), np.array([0, 1, 2]))
  assert found.tolist() == [1, 1, 2]
  # The second op first: on d0, so the first op, too, and from d0 no link goes
  # to d2.
  found = choose_near(groups, np.array([1, 0, 2]), np.array([1, 0, 2]))
  assert found.tolist() == [0, 0, 0]


def random_case(seed):
  """Six ops of two kinds on four devices with a third of the links."""
  rng = np.random.default_rng(seed)
  times = [
    {kind: 1.0 for kind in rng.permutation(["A", "B"])[: rng.integers(1, 3)]}
    for _ in range(6)
  ]
  edges = [(i, j) for i in range(6) for j in range(i + 1, 6)]
  edges = [edge for edge in edges if rng.random() < 0.4]
  pairs = list(itertools.permutations(range(4), 2))
  links = [pair for pair in pairs if rng.random() < 0.33]
  problem = Problem(
    problems.graph(times, edges),
    problems.cluster([np.inf] * 4, ["A", "A", "B", "B"], links=links),
  )
  return problem, rng.random((6, 4))


@pytest.mark.parametrize("block", range(4))
def test_a_choice_is_found_wherever_there_is_one(block):
  refused = 0
  for seed in range(50 * block, 50 * (block + 1)):
    problem, scores = random_case(seed)
    groups = GroupGraph(problem)
    try:
      found = choose(groups, scores, groups.order)
    except ProblemError:
      refused += 1
      rows = itertools.product(*map(np.flatnonzero, groups.allowed))
      assert not any(is_linked(problem, np.array(row)) for row in rows), seed
      continue
    assert groups.allowed[np.arange(6), found].all()
    assert is_linked(problem, found)
  assert 0 < refused < 50


def test_a_large_graph_with_few_links_takes_a_moment():
  # 20,000 ops in 100 chains on a ring of one direction, wishes at random.
  count, rng = 20_000, np.random.default_rng(0)
  edges = [(i, i + 100) for i in range(count - 100)]
  ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
  problem = Problem(
    problems.graph([1.0] * count, edges),
    problems.cluster([np.inf] * 4, links=ring),
  )
  found = choose_near(GroupGraph(problem), rng.integers(0, 4, count))
  assert is_linked(problem, found)
  assert len(set(found.tolist())) == 4
