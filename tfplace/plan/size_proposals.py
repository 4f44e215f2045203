"""Sizes of microbatches for devices that differ in speed or memory."""

import numpy as np

from tfplace.core.microbatches import plain_sizes
from tfplace.core.problem import Problem
from tfplace.errors import PlacementError
from tfplace.placers.groups import GroupGraph, working_devices
from tfplace.simulate import Simulator

_PER_DEVICE = (1, 2)  # Numbers of microbatches of each device.


def proposed_sizes(problem: Problem) -> list[tuple[int, ...]]:
  """Proposes sizes by the speed of the devices, and within their memory.

  Each device gets one microbatch, or two. Devices that are too slow for one
  example get none.

  Args:
    problem: the whole step; `extra["batch_size"]` of its graph says how many
      examples it has.

  Returns:
    The sizes of each proposal, the largest first; none for equal devices.
  """
  examples = problem.graph.extra.get("batch_size", 0)
  groups = GroupGraph(problem)
  devices = working_devices(groups)
  if len(devices) < 2 or not isinstance(examples, int) or examples < 2:
    return []
  speed = 1.0 / np.maximum(groups.possible_us.sum(axis=0)[devices], 1e-300)
  most = _most_examples(groups, devices, examples)
  found = []
  for number in _PER_DEVICE:
    for limits in (np.full(len(devices), np.inf), most):
      shares = np.repeat(_within(examples, speed, limits) / number, number)
      sizes = _rounded(examples, shares)
      is_plain = sizes == plain_sizes(examples, len(sizes))
      if len(sizes) > 1 and not is_plain and sizes not in found:
        found.append(sizes)
  return found


def _most_examples(
  groups: GroupGraph, devices: np.ndarray, examples: int
) -> np.ndarray:
  """Returns [num_devices] examples that the memory of each device holds.

  What one device holds beside its variables is taken to grow with the batch.
  """
  problem = groups.problem
  first = int(devices[0])
  row = groups.expand(groups.nearest(np.full(groups.num_groups, first)))
  try:
    (found,) = Simulator(problem).evaluate(row[np.newaxis])
  except PlacementError:  # Alone, the device lacks a link.
    return np.full(len(devices), np.inf)
  held = float(problem.graph.persistent_bytes.sum())
  peak = found.peak_memory_bytes[problem.cluster.devices[first].name]
  of_example = max(peak - held, 0.0) / examples
  room = problem.cluster.memory_bytes[devices] - held / len(devices)
  return np.maximum(room, 0.0) / max(of_example, 1e-300)


def _within(examples: int, speed: np.ndarray, limits: np.ndarray) -> np.ndarray:
  """Divides examples by speed; what exceeds a limit goes to other devices."""
  shares = np.zeros(len(speed))
  is_open = np.ones(len(speed), bool)
  while is_open.any():
    left = max(examples - float(shares[~is_open].sum()), 0.0)
    shares[is_open] = left * speed[is_open] / speed[is_open].sum()
    is_full = is_open & (shares > limits)
    if not is_full.any():
      return shares
    shares[is_full] = limits[is_full]
    is_open &= ~is_full
  # Not even all memories suffice: the excess is shared by all.
  total = float(shares.sum())
  return shares * examples / total if total > 0 else examples * speed


def _rounded(examples: int, shares: np.ndarray) -> tuple[int, ...]:
  """Rounds shares to integers of the same sum, without zeros."""
  shares = shares * examples / float(shares.sum())
  sizes = np.floor(shares + 1e-9).astype(int)
  missing = examples - int(sizes.sum())
  # Alike devices stay alike where that is possible: equal remainders in turn.
  most = np.argsort(-np.round(shares - sizes, 6), kind="stable")
  sizes[most[:missing]] += 1
  return tuple(sorted((int(size) for size in sizes if size), reverse=True))
