"""List schedulers: Baechi's, with favorite children, and HEFT."""

import dataclasses

import numpy as np
import pytest

from tests.testing import exact, problems
from tfplace.graph import OpSpec, Problem, build_graph
from tfplace.graph.cluster import MESSAGE_COSTS
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling.co_placement import GROUPINGS, co_placed
from tfplace.placers.list_scheduling.costs import list_tables
from tfplace.placers.list_scheduling.favorite_children import (
  chains,
  favorite_children,
  relaxed,
)


def placed(problem, strategy):
  return place(problem, strategy, budget_s=5).placement.devices.tolist()


@pytest.mark.parametrize("strategy", ["heft", "m_etf"])
def test_independent_ops_are_spread(strategy):
  # Longest first: 5 | 4, then 3 after the 4, then 2 after the 5: 7 and 7.
  problem = Problem(
    problems.graph([2.0, 3.0, 4.0, 5.0], []), problems.cluster([np.inf] * 2)
  )
  devices = placed(problem, strategy)
  assert devices[0] == devices[3] != devices[1] == devices[2]


@pytest.mark.parametrize("strategy", ["heft", "m_etf", "m_sct"])
@pytest.mark.parametrize("field", MESSAGE_COSTS)
def test_what_messages_take_of_devices_keeps_a_fork_together(strategy, field):
  # o0 feeds o1 and o2, 8 bytes each. A message takes 8 us or more of a device.
  problem = Problem(
    problems.graph(
      [5.0, 3.0, 3.0], [(0, 1), (0, 2)], output_bytes=[(8.0,), (0.0,), (0.0,)]
    ),
    problems.cluster([np.inf] * 2, bandwidth=1e6),
  )
  costs = {field: 1.0 if field.endswith("byte") else 8.0}
  links = tuple(
    dataclasses.replace(link, **costs) for link in problem.cluster.links
  )
  cluster = dataclasses.replace(problem.cluster, links=links)
  assert len(set(placed(problem, strategy))) > 1
  assert len(set(placed(Problem(problem.graph, cluster), strategy))) == 1


def test_heft_fills_idle_gaps():
  # Ranks 12, 8, 6 and 1. o0 takes d0 for [0, 4], and o1 with its 1000 bytes
  # must follow it, [4, 12]... of d1, which waits for nothing, o2 takes [0, 6]
  # and o3 is inserted behind it rather than after o1.
  problem = Problem(
    problems.graph(
      [4.0, 8.0, 6.0, 1.0],
      [(0, 1)],
      output_bytes=[(1000.0,), (0.0,), (0.0,), (0.0,)],
    ),
    problems.cluster([np.inf] * 2, bandwidth=1.0),
  )
  devices = placed(problem, "heft")
  assert devices[0] == devices[1] != devices[2] == devices[3]


def test_m_topo_fills_to_an_equal_share_of_memory():
  # 6 ops of 10 bytes on 3 devices: a share of 20 and the largest op, 10, so
  # that the devices take 3, 3 and 0 (the paper's rule).
  problem = Problem(
    problems.graph(
      [1.0] * 6, [(i, i + 1) for i in range(5)], persistent_bytes=[10.0] * 6
    ),
    problems.cluster([1000.0] * 3),
  )
  assert placed(problem, "m_topo") == [0, 0, 0, 1, 1, 1]


def test_a_long_graph_of_short_ops_is_not_all_sources():
  # A random tree, each op far below its longest path.
  rng = np.random.default_rng(0)
  edges = [(int(rng.integers(max(0, i - 20), i)), i) for i in range(1, 4000)]
  problem = Problem(
    problems.graph([1.0] * 4000, edges), problems.cluster([np.inf] * 2)
  )
  for strategy in ("heft", "m_etf"):
    counts = np.bincount(placed(problem, strategy), minlength=2)
    assert counts.min() > 1000, strategy


def named(names_and_types, edges):
  ops = [OpSpec(n, t, {"GPU": 1.0}, (4.0,)) for n, t in names_and_types]
  return build_graph("g", ops, [(a, 0, b) for a, b in edges])


def groups_of(problem):
  return problem.group_of.tolist()


def test_groups_by_hand():
  # A forward pair, each with its gradient; the loss and what comes back.
  #   a -> b -> loss -> gb -> ga, and a -> ga, b -> gb.
  graph = named(
    [
      ("m/a", "A"),
      ("m/b", "B"),
      ("loss", "Loss"),
      ("gradient_tape/m/b/x", "X"),
      ("gradient_tape/m/a/x", "X"),
    ],
    [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (1, 3)],
  )
  problem = Problem(graph, problems.cluster([np.inf] * 2))
  # Only consumers: loss -> gb -> ga. With gradients, these hold all together.
  assert groups_of(co_placed(problem, True, False)) == [0, 1, 2, 2, 2]
  assert groups_of(co_placed(problem, False, True)) == [0, 1, 2, 1, 0]
  assert groups_of(co_placed(problem, True, True)) == [0, 0, 0, 0, 0]
  assert groups_of(co_placed(problem, False, False)) == [0, 1, 2, 3, 4]


def test_variables_that_no_device_can_hold_together_stay_apart():
  # A chain of three variables of 30 bytes; two fit into 70.
  problem = Problem(
    problems.graph(
      [1.0] * 3, [(0, 1), (1, 2)], persistent_bytes=[30.0, 30.0, 30.0]
    ),
    problems.cluster([70.0, 60.0]),
  )
  assert groups_of(co_placed(problem)) == [0, 0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_placements_of_the_coarser_problem_are_allowed(seed):
  problem = problems.random_problem(seed)
  for rules in GROUPINGS:
    coarse = co_placed(problem, *rules)
    # Ops that shared a group still do.
    assert len({*zip(problem.group_of, coarse.group_of, strict=True)}) == (
      problem.num_groups
    )
    devices = coarse.group_allowed.argmax(axis=1)[coarse.group_of]
    assert problem.allowed[np.arange(len(devices)), devices].all()


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
