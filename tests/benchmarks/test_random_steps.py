"""Random training steps: the same for a seed, and placeable."""

import numpy as np

from benchmarks.random_steps import on_kinds, training_step
from tfplace import Problem, cluster_preset


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
