"""Inputs of the policies of the literature, by hand."""

import numpy as np
import pytest

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.graph import OpSpec, build_graph
from tfplace.learned.decisions import Decisions, group_decisions
from tfplace.learned.sequence import features, placers, placeto_features


def small():
  """a feeds b and c; b feeds c; c and its variable v share a group."""
  spec = OpSpec
  ops = [
    spec("a", "MatMul", {"GPU": 10.0}, [100.0, 900.0]),
    spec("b", "Relu", {"GPU": 10.0, "CPU": 50.0}, [400.0]),
    spec("v", "VarHandleOp", {"GPU": 0.0, "CPU": 0.0}, [], 8.0, 0.0, "g"),
    spec("c", "MatMul", {"CPU": 20.0}, [], colocation="g"),
  ]
  edges = [(0, 0, 1), (0, 1, 3), (1, 0, 3), (2, -1, 3)]
  graph = build_graph("small", ops, edges)
  return group_decisions(problem_of(graph, gpus(2, cpu=True)))


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


def test_members_without_a_kernel_go_to_their_fastest_device():
  sampler = placers.HierarchicalSampler(None, small())
  # a runs on GPUs only, b everywhere, c on the CPU only.
  found = sampler.follow_groups(
    np.array([[0, 0, 0], [0, 1, 0]]), np.array([[1, 0], [2, 1]])
  )
  assert found.tolist() == [[1, 1, 2], [0, 1, 2]]


def diamond(decision_of=range(5)):
  """a -> b, c -> d, and e alone; two GPUs and a CPU; d not on a CPU."""
  ops = [
    OpSpec("a", "Relu", {"GPU": 2.0, "CPU": 8.0}, [4000]),
    OpSpec("b", "Relu", {"GPU": 6.0, "CPU": 9.0}, [8000]),
    OpSpec("c", "Relu", {"GPU": 3.0, "CPU": 3.0}, [2000]),
    OpSpec("d", "Relu", {"GPU": 4.0}, [1000]),
    OpSpec("e", "Relu", {"GPU": 1.0, "CPU": 1.0}, [0]),
  ]
  edges = [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, 0, 3)]
  graph = build_graph("diamond", ops, edges)
  problem = problem_of(graph, gpus(2, cpu=True))
  return Decisions(problem, np.array(decision_of, np.int32))


def test_placetos_numbers_are_divided_by_their_maximum():
  seen = placeto_features.extract(diamond())
  expected = [[2 / 6, 0.5], [1, 1], [0.5, 0.25], [4 / 6, 0.125], [1 / 6, 0]]
  np.testing.assert_allclose(seen.node[:, 1, :2], expected, rtol=1e-6)
  # On the CPU b takes longest, 9; d cannot run there.
  expected = [8 / 9, 1, 3 / 9, 0, 1 / 9]
  np.testing.assert_allclose(seen.node[:, 2, 2], expected, rtol=1e-6)
  expected = np.log([8 / 2, 9 / 6, 1, 1, 1])
  np.testing.assert_allclose(seen.slower[:, 2], expected, atol=1e-6)
  assert (seen.slower[:, :2] == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_ancestors_equal_a_search_through_the_graph(seed):
  problem = problem_of(random_graph(40, seed), gpus(2))
  seen = placeto_features.extract(group_decisions(problem))
  for group in range(40):
    reached, stack = set(), [group]
    while stack:
      feeders = set(np.flatnonzero(seen.feeds[stack.pop()])) - reached
      reached |= feeders
      stack.extend(feeders)
    assert set(np.flatnonzero(seen.ancestors[group])) == reached


def test_episodes_replace_one_group_at_a_time_from_one_start():
  def logits(name, placement, step):
    assert name == "logits"
    return np.where(decisions.allowed[step], 0.0, -1e9)

  decisions = diamond()
  sampler = placers.PlacetoSampler(logits, decisions)
  sampler.best = np.array([0, 1, 2, 0, 1], np.int32)
  starts = set()
  for seed in range(20):
    sampled = sampler.sample(np.random.default_rng(seed), 4)
    path = sampled.given["placements"]
    assert path.shape == (5, 6, 5) and (path[:, 0] == path[0, 0]).all()
    starts.add(tuple(path[0, 0]))
    for step in range(5):
      others = np.arange(5) != step
      assert (path[:, step + 1, others] == path[:, step, others]).all()
    assert (sampled.choices == path[:, -1]).all()
    assert decisions.allowed[np.arange(5), sampled.choices].all()
  # Half from the best; the CPU is as fast as a GPU for c and e alone.
  assert tuple(sampler.best) in starts and 5 < len(starts) < 15
  assert 2 not in {device for s in starts for device in s[:2]}
