"""The exact optimum of a tiny problem, by simulating every placement."""

import math

import numpy as np

from tfplace.simulate import Simulator

MAX_PLACEMENTS = 200_000


def count_placements(problem):
  """Products of the devices that each group may take."""
  return math.prod(problem.group_allowed.sum(axis=1).tolist())


def all_placements(problem):
  """[count, num_ops] int32: every placement that kinds and links allow."""
  count = count_placements(problem)
  assert count <= MAX_PLACEMENTS, f"{count} placements are too many to try"
  choices = [np.flatnonzero(row) for row in problem.group_allowed]
  grid = np.meshgrid(*choices, indexing="ij") if choices else []
  rows = np.stack([axis.ravel() for axis in grid], axis=1) if grid else None
  if rows is None:
    return np.zeros((1, 0), np.int32)
  devices = rows[:, problem.group_of].astype(np.int32)
  graph, channel = problem.graph, problem.cluster.channel
  src, dst = devices[:, graph.edge_src], devices[:, graph.edge_dst]
  linked = ((src == dst) | (channel[src, dst] >= 0)).all(axis=1)
  return np.ascontiguousarray(devices[linked])


def optimum(problem):
  """Least step time in us of all placements that fit; infinity if none does."""
  devices = all_placements(problem)
  if not len(devices):
    return math.inf
  batch = Simulator(problem, num_threads=1).run(devices)
  return float(np.where(batch.feasible, batch.step_time_us, np.inf).min())
