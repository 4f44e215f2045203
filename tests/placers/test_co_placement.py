import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import OpSpec, Placement, Problem, build_graph
from tfplace.placers import place
from tfplace.placers.list_scheduling.co_placement import (
  GROUPINGS,
  co_placed,
  forward_ops,
  offer_groupings,
  only_consumers,
)


def named(names_and_types, edges):
  ops = [OpSpec(n, t, {"GPU": 1.0}, (4.0,)) for n, t in names_and_types]
  return build_graph("g", ops, [(a, 0, b) for a, b in edges])


def groups_of(problem):
  return problem.group_of.tolist()


def test_only_consumer_by_hand():
  # o0 feeds o1 alone, twice (data and control); o1 feeds o2 and o3; o2 and o3
  # feed o4; o4 feeds nobody.
  graph = build_graph(
    "g",
    [OpSpec(f"o{i}", "Op", {"GPU": 1.0}, (1.0,)) for i in range(5)],
    [(0, 0, 1), (0, -1, 1), (1, 0, 2), (1, 0, 3), (2, 0, 4), (3, -1, 4)],
  )
  assert only_consumers(graph).tolist() == [1, -1, 4, 4, -1]


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


def test_ops_that_share_no_kind_stay_apart():
  problem = Problem(
    problems.graph([{"CPU": 1.0}, {"GPU": 1.0}], [(0, 1)]),
    problems.cluster([np.inf] * 2, kinds=["CPU", "GPU"]),
  )
  assert groups_of(co_placed(problem)) == [0, 1]


def test_variables_that_no_device_can_hold_together_stay_apart():
  # A chain of three variables of 30 bytes; two fit into 70.
  problem = Problem(
    problems.graph(
      [1.0] * 3, [(0, 1), (1, 2)], persistent_bytes=[30.0, 30.0, 30.0]
    ),
    problems.cluster([70.0, 60.0]),
  )
  assert groups_of(co_placed(problem)) == [0, 0, 1]


@pytest.mark.parametrize("seed", range(30))
def test_placements_of_the_coarser_problem_are_allowed(seed):
  problem = problems.random_problem(seed)
  for rules in GROUPINGS.values():
    coarse = co_placed(problem, *rules)
    # What shared a group still does.
    assert len({*zip(problem.group_of, coarse.group_of, strict=True)}) == (
      problem.num_groups
    )
    devices = coarse.group_allowed.argmax(axis=1)[coarse.group_of]
    assert problem.allowed[np.arange(len(devices)), devices].all()


class Recorder:
  """A tracker that only remembers."""

  best = None

  def __init__(self, problem):
    self.problem, self.evaluations, self.rows = problem, 0, []

  def offer(self, devices):
    self.evaluations += 1
    self.rows.append(devices.tolist())
    Placement(self.problem, devices)
    return type("Fits", (), {"feasible": True, "step_time_us": 1.0})


def test_co_placement_sorts_no_graph_again():
  problem = problems.random_problem(0)
  _ = problem.graph.in_csr, problem.earliest_start_us
  together = co_placed(problem)
  for name in ("topological_order", "in_csr", "out_csr"):
    assert vars(together.graph)[name] is vars(problem.graph)[name]
  assert vars(together)["earliest_start_us"] is problem.earliest_start_us


@pytest.mark.parametrize("seed", range(10))
def test_an_only_consumer_reads_all_outputs(seed):
  graph = problems.random_problem(seed).graph
  pairs = sorted(set(zip(graph.edge_src, graph.edge_dst, strict=True)))
  readers = [[b for a, b in pairs if a == op] for op in range(graph.num_ops)]
  wanted = [of[0] if len(of) == 1 else -1 for of in readers]
  assert only_consumers(graph).tolist() == wanted


@pytest.mark.parametrize("strategy", ["m_topo", "heft", "m_etf", "m_sct"])
def test_groupings_end_when_the_seconds_are_over(strategy):
  problem = problems.two_halves()
  in_time = place(problem, strategy, budget_s=600.0)
  assert in_time.evaluations == 3  # one for each grouping
  assert place(problem, strategy, budget_s=1e-9).evaluations == 1


def test_every_grouping_is_offered_to_the_original_problem():
  problem = Problem(
    problems.graph([1.0] * 3, [(0, 1), (0, 2)]),
    problems.cluster([np.inf] * 2),
  )
  recorder = Recorder(problem)
  seen = []

  def alternate(groups):
    seen.append(groups.num_groups)
    return np.arange(groups.num_groups, dtype=np.int32) % 2

  offer_groupings(recorder, ("none", "consumers"), alternate)
  assert seen == [3, 3]
  assert recorder.rows == [[0, 1, 0]] * 2
