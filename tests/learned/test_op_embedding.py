"""Inputs of the recurrent policies, by hand."""

import numpy as np

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import core
from tfplace.learned.decisions import group_decisions
from tfplace.learned.sequence import features


def small():
  """a feeds b and c; b feeds c; c and its variable v share a group."""
  spec = core.OpSpec
  ops = [
    spec("a", "MatMul", {"GPU": 10.0}, [100.0, 900.0]),
    spec("b", "Relu", {"GPU": 10.0, "CPU": 50.0}, [400.0]),
    spec("v", "VarHandleOp", {"GPU": 0.0, "CPU": 0.0}, [], 8.0, 0.0, "g"),
    spec("c", "MatMul", {"CPU": 20.0}, [], colocation="g"),
  ]
  edges = [(0, 0, 1), (0, 1, 3), (1, 0, 3), (2, -1, 3)]
  graph = core.build_graph("small", ops, edges)
  return group_decisions(problem_of(graph, gpus(2, cpu=True)))


def test_commonest_types_come_first_and_ties_are_by_name():
  problem = small().problem
  assert features.commonest_types([problem]) == (
    "MatMul",
    "Relu",
    "VarHandleOp",
  )
  assert features.commonest_types([problem], 1) == ("MatMul",)


def test_embedding_of_a_small_graph():
  decisions = small()
  assert decisions.decision_of.tolist() == [0, 1, 2, 2]
  seen = features.extract(decisions, ("MatMul", "Relu"))
  # The group has one MatMul and one of another type.
  assert seen.types.tolist() == [[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5]]
  log = np.log1p([900.0, 100.0, 400.0]) / 20
  expected = [[log[0], log[1], 0, 0, 0], [log[2], 0, 0, 0, 0], [0] * 5]
  np.testing.assert_allclose(seen.sizes, expected, rtol=1e-6)
  # Producers, then consumers, by the bytes exchanged: number + 1 of 3.
  adjacency = np.zeros((3, 12))
  adjacency[0, 6:8] = 3 / 3, 2 / 3  # 900 bytes to the group, 100 to b
  adjacency[1, [0, 6]] = 1 / 3, 3 / 3
  adjacency[2, :2] = 1 / 3, 2 / 3
  np.testing.assert_allclose(seen.adjacency, adjacency, rtol=1e-6)
  assert seen.allowed.tolist() == [
    [True, True, False],
    [True, True, True],
    [False, False, True],
  ]
  assert features.fallback_devices(decisions).tolist() == [0, 0, 2]


def test_at_most_six_neighbors_count():
  ops = [
    core.OpSpec(f"op{i}", "Relu", {"GPU": 1.0}, [100.0 * (i + 1)])
    for i in range(9)
  ]
  graph = core.build_graph("fan", ops, [(i, 0, 8) for i in range(8)])
  decisions = group_decisions(problem_of(graph, gpus(2)))
  seen = features.extract(decisions, ("Relu",))
  last = decisions.decision_of[8]
  heaviest = decisions.decision_of[[7, 6, 5, 4, 3, 2]]
  expected = [*((heaviest + 1) / 9), *[0] * 6]
  np.testing.assert_allclose(seen.adjacency[last], expected, rtol=1e-6)


def test_an_empty_cluster_of_neighbors_is_zeros():
  decisions = group_decisions(problem_of(random_graph(1, 0), gpus(2)))
  seen = features.extract(decisions, ())
  assert seen.adjacency.tolist() == [[0] * 12]
  assert seen.types.tolist() == [[1.0]]
