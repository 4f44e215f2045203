"""Graphs of any size that are like a model's, and placements of them."""

import numpy as np

from tfplace.core import OpGraph, OpSpec, Problem, build_graph


def synthetic_graph(num_ops: int, seed: int) -> OpGraph:
  """A graph with Inception-V3's proportions: 1.4 edges per op, 7% without
  time, most edges short, some as long as from a layer to its gradient.
  """
  rng = np.random.default_rng(seed)
  ops = []
  for i in range(num_ops):
    time_us = 0.0 if rng.random() < 0.07 else rng.lognormal(2.0, 1.5)
    sizes = rng.lognormal(9.0, 3.0, 1).round()
    kinds = {"GPU": time_us, "CPU": 10 * time_us}
    ops.append(OpSpec(f"op{i}", "Op", kinds, sizes, temp_bytes=64.0))
  edges = set()
  for i in range(1, num_ops):
    for _ in range(1 + rng.binomial(2, 0.2)):
      far = rng.random() < 0.15
      back = rng.integers(1, i + 1) if far else rng.geometric(0.2)
      edges.add((max(0, i - int(back)), 0, i))
  return build_graph(f"synthetic_{num_ops}", ops, sorted(edges))


def contiguous(problem: Problem) -> np.ndarray:
  """[num_ops] equal shares of the time, in topological order, on the devices
  of the first one's kind; ops that cannot run there go where they can.
  """
  order = problem.graph.topological_order
  kind = problem.cluster.devices[0].kind
  devices = [i for i, d in enumerate(problem.cluster.devices) if d.kind == kind]
  done = np.cumsum(problem.fastest_us[order])
  share = np.minimum(done / max(done[-1], 1e-9), 1 - 1e-9) * len(devices)
  result = np.empty(problem.graph.num_ops, np.int32)
  result[order] = np.array(devices, np.int32)[share.astype(int)]
  return _allowed(problem, result)


def random_placement(problem: Problem, seed: int) -> np.ndarray:
  """[num_ops] any device for each op."""
  rng = np.random.default_rng(seed)
  shape = problem.graph.num_ops
  result = rng.integers(0, problem.cluster.num_devices, shape, np.int32)
  return _allowed(problem, result)


def _allowed(problem: Problem, devices: np.ndarray) -> np.ndarray:
  """Moves whole colocation groups to a device that runs them."""
  offsets, ops = problem.group_ops
  wanted = devices[ops[offsets[:-1]]]
  groups = np.arange(problem.num_groups)
  fits = problem.group_allowed[groups, wanted]
  wanted = np.where(fits, wanted, problem.group_allowed.argmax(axis=1))
  return wanted[problem.group_of].astype(np.int32)
