import dataclasses

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import OpSpec, Problem, build_graph
from tfplace.core.cluster import MESSAGE_COSTS
from tfplace.placers import place
from tfplace.placers.list_scheduling.co_placement import (
  GROUPINGS,
  co_placed,
  forward_ops,
  only_consumers,
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
      [1.0] * 6,
      [(i, i + 1) for i in range(5)],
      persistent_bytes=[10.0] * 6,
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


def test_forward_ops_by_name_and_by_type():
  graph = named(
    [
      ("net/dense/MatMul", "MatMul"),
      ("net/dense/Relu", "Relu"),
      ("gradient_tape/net/dense/MatMul/MatMul_1", "MatMul"),
      ("gradients/net/dense/MatMul_grad/MatMul", "MatMul"),
      ("gradient_tape/net/dense/ReluGrad", "ReluGrad"),
      ("gradient_tape/net/other/Sum", "Sum"),
      ("adam/net/dense/MatMul/Mul", "Mul"),
    ],
    [(0, 4), (1, 4)],
  )
  assert forward_ops(graph).tolist() == [-1, -1, 0, 0, 1, -1, -1]


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


@pytest.mark.parametrize("seed", range(4))
def test_an_only_consumer_reads_all_outputs(seed):
  graph = problems.random_problem(seed).graph
  pairs = sorted(set(zip(graph.edge_src, graph.edge_dst, strict=True)))
  readers = [[b for a, b in pairs if a == op] for op in range(graph.num_ops)]
  wanted = [of[0] if len(of) == 1 else -1 for of in readers]
  assert only_consumers(graph).tolist() == wanted
