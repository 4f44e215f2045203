import numpy as np
import pytest

from tests.testing import exact, problems
from tfplace.core import OpSpec, Problem, build_graph
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling.costs import list_tables
from tfplace.placers.list_scheduling.favorite_children import (
  chains,
  favorite_children,
  relaxed,
)
from tfplace.placers.list_scheduling.placers import schedule


def fork(times, size=10.0):
  """o0 sends `size` bytes to o1 and to o2; links of 1 byte/us."""
  return Problem(
    problems.graph(
      times, [(0, 1), (0, 2)], output_bytes=[(size,), (0.0,), (0.0,)]
    ),
    problems.cluster([np.inf] * 2),
  )


def favorites(problem, time_limit_s=10.0):
  tables = list_tables(GroupGraph(problem))
  found = favorite_children(problem, tables, time_limit_s)
  return found.tolist()


def nodes_of(problem):
  tables = list_tables(GroupGraph(problem))
  only = np.full(problem.graph.num_ops, -1)
  return chains(problem, only, tables)


def waiting_pays():
  """ETF takes what can start first, SCT waits for the favorite child.

  Links of 1 byte/us. o0 (1 us) sends 100 bytes to o2 and 5 to o3, o1 (1 us)
  sends 2 bytes to o2; o2 and o3 take 10 us. o0 runs on d0 and o1 on d1 in
  [0, 1]. There ETF starts o3 at once, in [1, 11], and then o2 in [11, 21].
  With o2 as the favorite of o0, d0 waits for o1's bytes and runs o2 in
  [3, 13], and d1 runs o3 in [6, 16].
  """
  ops = [
    OpSpec("o0", "Op", {"GPU": 1.0}, [100.0, 5.0]),
    OpSpec("o1", "Op", {"GPU": 1.0}, [2.0]),
    OpSpec("o2", "Op", {"GPU": 10.0}, [0.0]),
    OpSpec("o3", "Op", {"GPU": 10.0}, [0.0]),
  ]
  edges = [(0, 0, 2), (0, 1, 3), (1, 0, 2)]
  return Problem(build_graph("g", ops, edges), problems.cluster([np.inf] * 2))


def test_relaxation_by_hand():
  # w >= 1 + 10 (1 - y1) + 5 and w >= 1 + 10 (1 - y2) + 1 with y1 + y2 <= 1
  # meet at y1 = 0.7, y2 = 0.3 and w = 9.
  assert relaxed(nodes_of(fork([1.0, 5.0, 1.0])), 10.0) == pytest.approx(
    [0.7, 0.3]
  )


def test_favorite_is_the_child_that_the_step_waits_for():
  # w >= 31 - 10 y1 and w >= 12 - 10 y2: y1 is 1.
  assert favorites(fork([1.0, 20.0, 1.0])) == [1, -1, -1]
  # Neither 0.7 nor 0.3 is clear enough.
  assert favorites(fork([1.0, 5.0, 1.0])) == [-1, -1, -1]


@pytest.mark.parametrize("seed", range(8))
def test_no_op_has_two_favorites_or_is_the_favorite_of_two(seed):
  problem = problems.random_problem(seed)
  for time_limit_s in (0.0, 10.0):
    found = favorites(problem, time_limit_s)
    children = [child for child in found if child >= 0]
    assert len(children) == len(set(children))
    edges = {
      *zip(
        problem.graph.edge_src.tolist(),
        problem.graph.edge_dst.tolist(),
        strict=True,
      )
    }
    assert all((op, c) in edges for op, c in enumerate(found) if c >= 0)


def test_device_waits_for_the_favorite_child():
  problem = waiting_pays()
  assert favorites(problem)[0] == 2
  assert place(problem, "m_etf").evaluation.step_time_us == 21.0
  result = place(problem, "m_sct")
  assert result.evaluation.step_time_us == 16.0 == exact.optimum(problem)


def test_urgent_op_does_not_wait_for_a_favorite():
  # As above, and o4 (12 us), which o0 tells to start: from 1 on it could run
  # anywhere. It ranks above o3, and d0 runs it in [1, 13], before o2.
  base = waiting_pays().graph
  times = [*base.time_us["GPU"].tolist(), 12.0]
  outputs = [[100.0, 5.0], [2.0], [0.0], [0.0], [0.0]]
  ops = [
    OpSpec(f"o{i}", "Op", {"GPU": time}, output)
    for i, (time, output) in enumerate(zip(times, outputs, strict=True))
  ]
  edges = [(0, 0, 2), (0, 1, 3), (1, 0, 2), (0, -1, 4)]
  graph = build_graph("g", ops, edges)
  groups = GroupGraph(Problem(graph, problems.cluster([np.inf] * 2)))
  devices = schedule(groups, np.array([2, -1, -1, -1, -1]))
  assert devices.tolist() == [0, 1, 0, 1, 0]
