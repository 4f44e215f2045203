"""Placements that are made to measure with, not to be good."""

from collections.abc import Sequence

import numpy as np

from tfplace.graph.problem import Problem


def home(problem: Problem) -> np.ndarray:
  """[num_groups]: the first device that each group may be on."""
  return problem.group_allowed.argmax(axis=1)


def scattered(
  problem: Problem, shares: Sequence[float], seed: int
) -> np.ndarray:
  """[len(shares), num_ops]: a share of the groups on random devices.

  The others stay at home. A larger share moves the same groups, and more.
  """
  rng = np.random.default_rng(seed)
  # A random device among the allowed ones: the largest of random keys.
  keys = rng.random(problem.group_allowed.shape)
  away = np.where(problem.group_allowed, keys, -1.0).argmax(axis=1)
  moved = rng.random(problem.num_groups)
  rows = [np.where(moved < share, away, home(problem)) for share in shares]
  return np.stack(rows)[:, problem.group_of].astype(np.int32)


def turns(problem: Problem, devices: Sequence[int], runs: int) -> np.ndarray:
  """[num_ops]: runs of groups, in the order of the graph, on devices in turn.

  Few tensors cross. A group that may not be where its turn is stays at home.

  Args:
    problem: what is split.
    devices: indices of the devices that take turns.
    runs: how many runs of as many groups each.
  """
  position = np.empty(problem.graph.num_ops, np.int64)
  position[problem.graph.topological_order] = np.arange(len(position))
  first = np.full(problem.num_groups, len(position))
  np.minimum.at(first, problem.group_of, position)
  rank = np.empty(problem.num_groups, np.int64)
  rank[np.argsort(first, kind="stable")] = np.arange(problem.num_groups)
  turn = np.array(devices)[rank * runs // problem.num_groups % len(devices)]
  may = problem.group_allowed[np.arange(len(turn)), turn]
  row = np.where(may, turn, home(problem))
  return row[problem.group_of].astype(np.int32)
