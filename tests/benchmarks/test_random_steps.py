"""Random training steps: the same for a seed, and placeable."""

import numpy as np
import pytest

from benchmarks.random_steps import on_kinds, training_step
from tests.testing.policy_problems import gpus
from tfplace import Problem, Simulator, cluster_preset


@pytest.mark.parametrize("seed", range(5))
def test_step_is_a_graph_with_updates_beside_their_variables(seed):
  graph = training_step(seed)
  assert 30 <= graph.num_ops <= 1000
  problem = Problem(graph, gpus(2, cpu=True, memory_bytes=1e15))
  one_device = np.zeros((1, graph.num_ops), np.int32)
  assert Simulator(problem).run(one_device).feasible.all()
  for op, name in enumerate(graph.names):
    if name.endswith("/update"):
      variable = graph.index[f"{name.removesuffix('/update')}/variable"]
      assert graph.colocation[op] == graph.colocation[variable] >= 0


def test_kinds_of_gpus_take_times_by_their_bandwidth():
  cluster = cluster_preset("p100x1+v100x1")
  graph = on_kinds(training_step(0), cluster)
  Problem(graph, cluster)
  times = graph.time_us
  np.testing.assert_array_equal(times["GPU-v100"], times["GPU"])
  # Their memory gives 900 and 732 GB/s.
  np.testing.assert_allclose(times["GPU-p100"], times["GPU"] * 900 / 732)
  plain = training_step(0)
  assert on_kinds(plain, cluster_preset("v100x2")).time_us == plain.time_us
