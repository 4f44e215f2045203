"""Symmetry: devices that can be swapped without changing any step time.

With D identical devices, every placement has D! equivalent namings. A policy
trained on all of them learns nothing, because their average is uniform, and a
solver would search them all. Costs are equal for all namings; ties, which go by
position, can still differ.
"""

import itertools

import numpy as np
from scipy import optimize

from tfplace.graph.cluster import MESSAGE_COSTS, Cluster


def swappable(cluster: Cluster, i: int, j: int) -> bool:
  """Returns True if swapping two devices and their links changes nothing."""
  one, other = (
    (device.kind, device.memory_bytes, device.op_overhead_us)
    for device in (cluster.devices[i], cluster.devices[j])
  )
  if one != other:
    return False
  order = np.arange(cluster.num_devices)
  order[[i, j]] = j, i
  at = np.ix_(order, order)
  for field in ("bandwidth", "latency_us", "gap_us", *MESSAGE_COSTS):
    matrix = getattr(cluster, field)
    if not np.array_equal(matrix, matrix[at], equal_nan=True):
      return False
  return np.array_equal(_shares(cluster.channel), _shares(cluster.channel[at]))


def _shares(channel: np.ndarray) -> np.ndarray:
  """Renumbers channels so that equal sharing gives equal matrices."""
  _, first, inverse = np.unique(channel, return_index=True, return_inverse=True)
  return np.where(channel < 0, -1, first[inverse.reshape(channel.shape)])


def device_classes(cluster: Cluster) -> np.ndarray:
  """Assigns interchangeable devices to a class, [num_devices] int32.

  The class is numbered by its first device. Any permutation of devices within
  classes gives the same cluster.
  """
  result = np.arange(cluster.num_devices, dtype=np.int32)
  for i, j in itertools.combinations(range(cluster.num_devices), 2):
    if result[j] == j and result[i] == i and swappable(cluster, i, j):
      result[j] = i
  return result


def by_first_use(choices: np.ndarray, classes: np.ndarray) -> np.ndarray:
  """Renames [N] devices so that each class is used in order of its devices.

  The first decision on a device of a class goes to the first device of the
  class, the next decision on another device of it to the second, and so on.
  """
  rename = np.full(len(classes), -1, np.int32)
  used, first = np.unique(choices, return_index=True)
  for name in np.unique(classes):
    members = np.flatnonzero(classes == name)
    order = [d for _, d in sorted(zip(first, used, strict=True))]
    order = [d for d in order if classes[d] == name]
    order += [d for d in members if d not in order]
    rename[order] = members
  return rename[choices]


def likeliest(
  choices: np.ndarray, logits: np.ndarray, classes: np.ndarray
) -> np.ndarray:
  """Renames the devices of each placement to maximize its probability.

  Among all equivalent namings, the most probable one under the policy solves an
  assignment problem. A policy that has settled on a naming keeps it. Otherwise
  its small preferences decide.

  Args:
    choices: [B, N] devices.
    logits: [N, D] logits of the policy, normalized or not.
    classes: [D] classes from `device_classes`.

  Returns:
    [B, N] int32 devices, equal to `choices` up to swaps within classes.
  """
  if len(np.unique(classes)) == len(classes):
    return choices
  apart = classes[:, None] != classes[None]
  result = np.empty_like(choices)
  for row, chosen in enumerate(choices):
    score = np.zeros((len(classes), len(classes)))
    np.add.at(score, chosen, logits)
    score[apart] = -1e15
    _, rename = optimize.linear_sum_assignment(score, maximize=True)
    result[row] = rename[chosen]
  return result
