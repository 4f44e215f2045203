"""Small problems for the tests of policies."""

import numpy as np

from tests.testing.clusters import linked
from tfplace.graph import Device, OpSpec, Problem, build_graph


def gpus(number, cpu=False, memory_bytes=1e9):
  """Identical GPUs, all linked, with a slower CPU where asked for."""
  devices = [
    Device(f"/device:GPU:{i}", "GPU", memory_bytes, 1.0) for i in range(number)
  ]
  if cpu:
    devices.append(Device("/device:CPU:0", "CPU", 1e12, 1.0))
  return linked(devices, 4000.0, 2.0)


def random_graph(num_ops, seed, cpu_only=False, name="random"):
  """A connected random graph; every seventh op on CPUs only where asked."""
  rng = np.random.default_rng(seed)
  ops = []
  for i in range(num_ops):
    time_us = {"GPU": float(rng.integers(5, 60))}
    time_us["CPU"] = 4 * time_us["GPU"]
    if cpu_only and i % 7 == 3:
      del time_us["GPU"]
    size = [float(rng.integers(1, 80)) * 1000]
    kind = "MatMul" if i % 2 else "Relu"
    ops.append(OpSpec(f"op{i}", kind, time_us, size, 100.0 * i))
  edges = sorted(
    {
      (int(rng.integers(max(0, j - 4), j)), 0, j)
      for j in range(1, num_ops)
      for _ in range(2)
    }
  )
  return build_graph(name, ops, edges)


def problem_of(graph, cluster):
  return Problem(graph, cluster)


def equal_head(num_decisions):
  """A head of `ordered` that rates all devices alike."""
  from tfplace.learned.ordered.decoding import FEATURES, Head

  shapes = (num_decisions, 1), (num_decisions, FEATURES), (FEATURES, 1), (1, 1)
  arrays = [np.zeros(shape, np.float32) for shape in (*shapes, (1,), (1,))]
  return Head(*arrays)


class UniformPolicy:
  """A policy of `ordered` with `equal_head`, which prefers to keep."""

  axes = 0

  def __init__(self, *sizes, keeping=1.5):
    self._sizes, self._keeping = sizes, keeping

  def decisions(self):
    return self._sizes

  def run(self, function, arrays):
    from tfplace.learned.ordered.decoding import IS_BASE

    if function == "head":
      return equal_head(1)[2:]
    head = equal_head(len(next(iter(arrays))))
    head.slope[:, IS_BASE] = self._keeping
    return head[:2]
