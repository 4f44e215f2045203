"""Units of decision: groups never split, and clusters respect kinds."""

import dataclasses

import numpy as np

from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace.graph import OpSpec, build_graph
from tfplace.learned.decisions import decisions_at, group_decisions


def test_each_free_op_is_a_decision_and_a_group_is_one():
  # ops 0 and 2 share a group: 3 decisions for 4 ops.
  ops = [
    OpSpec(name, "Relu", {"GPU": 1.0}, [4], colocation=group)
    for name, group in [("a", "g"), ("b", None), ("c", "g"), ("d", None)]
  ]
  edges = [(0, 0, 1), (1, 0, 2), (2, 0, 3)]
  problem = problem_of(build_graph("g", ops, edges), gpus(2))
  decisions = group_decisions(problem)
  assert decisions.num_decisions == 3
  assert decisions.decision_of.tolist() == [0, 1, 0, 2]
  assert decisions.to_devices(np.array([1, 0, 0])).tolist() == [1, 0, 1, 0]
  assert decisions.to_choices(np.array([1, 0, 1, 0])).tolist() == [1, 0, 0]


def test_clusters_keep_groups_whole_and_kinds_apart():
  problem = problem_of(
    random_graph(60, seed=1, cpu_only=True), gpus(2, cpu=True)
  )
  decisions = group_decisions(problem, max_decisions=12)
  assert decisions.num_decisions < problem.num_groups
  # Every group is within one cluster.
  for group in range(problem.num_groups):
    inside = decisions.decision_of[problem.group_of == group]
    assert len(set(inside.tolist())) == 1
  # A cluster runs wherever each of its ops runs: no op loses a device.
  assert (decisions.allowed[decisions.decision_of] == problem.allowed).all()


def test_what_a_choice_leaves_alone_stays_op_by_op():
  problem = problem_of(random_graph(50, seed=2), gpus(3))
  rng = np.random.default_rng(0)
  base = rng.integers(0, 3, problem.num_groups)[problem.group_of]
  of_clusters = group_decisions(problem, max_decisions=10)
  decisions = dataclasses.replace(of_clusters, base=base.astype(np.int32))
  stay = decisions.base_choices
  assert (decisions.to_devices(stay) == base).all()
  assert (of_clusters.to_devices(stay) != base).any()  # clusters are on several
  moved = stay.copy()
  moved[3] = (stay[3] + 1) % 3
  devices = decisions.to_devices(np.stack((stay, moved)))
  inside = decisions.decision_of == 3
  assert (devices[:, ~inside] == base[~inside]).all()
  assert (devices[1, inside] == moved[3]).all()
  shares = decisions.base_shares
  np.testing.assert_allclose(shares.sum(axis=1), 1.0)
  assert (shares.argmax(axis=1) == stay).all()


def test_sizes_that_merge_nothing_count_once():
  problem = problem_of(random_graph(40, seed=2), gpus(2))
  found = decisions_at(problem, [8, 40, None, 100])
  assert [d.num_decisions for d in found] == [8, problem.num_groups]
  assert [d.num_decisions for d in decisions_at(problem, [8, 8])] == [8]


def test_no_cluster_mixes_microbatches_or_loses_variables():
  # A variable of each layer feeds that layer in four microbatches; all
  # activations are small, so that bytes alone would merge across microbatches.
  ops = [
    OpSpec(f"v{j}", "VarHandleOp", {"GPU": 0.0}, [1e6], 1e6) for j in range(8)
  ]
  edges = []
  for i in range(4):
    for j in range(8):
      at = len(ops)
      name = f"microbatch_{i}/layer_{j}"
      ops.append(OpSpec(name, "MatMul", {"GPU": 10.0}, [10.0], microbatch=i))
      edges.append((j, 0, at))
      if j:
        edges.append((at - 1, 0, at))
  problem = problem_of(build_graph("split", ops, edges), gpus(2))
  of = group_decisions(problem, 16).decision_of
  microbatch = problem.graph.microbatch
  assert of.max() + 1 <= 16
  for decision in range(of.max() + 1):
    assert len(set(microbatch[of == decision].tolist())) == 1
  # 8 variables exchange nothing with each other: each is on its own.
  assert len(set(of[:8].tolist())) == 8
