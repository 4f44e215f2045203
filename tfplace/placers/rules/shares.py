"""Shares of microbatches among unequal replicas."""

import numpy as np


def balanced_shares(
  time_us: np.ndarray, held: np.ndarray, memory: np.ndarray
) -> list[np.ndarray]:
  """Gives each replica microbatches, so that the slowest one ends soon.

  The longest microbatch comes first and goes where it ends first, after the
  rule of Graham (1969) for equal machines. If the shares exceed a memory,
  shares within memory are returned as well.

  Args:
    time_us: [num_microbatches, replicas] microseconds.
    held: [num_microbatches, stages] bytes.
    memory: [replicas, stages] bytes of the devices.

  Returns:
    [num_microbatches] replica of each microbatch; equal ones are in the order
    of their replicas.
  """
  found = [_dealt(time_us)]
  sums = np.zeros_like(memory)
  np.add.at(sums, found[0], held)
  if (sums > memory).any():
    found.append(_dealt(time_us, held, memory))
  return found


def _dealt(
  time_us: np.ndarray,
  held: np.ndarray | None = None,
  memory: np.ndarray | None = None,
) -> np.ndarray:
  ends_us = np.zeros(time_us.shape[1])
  share = np.zeros(len(time_us), np.int64)
  room = None if memory is None else memory.copy()
  for i in np.argsort(-time_us.min(axis=1), kind="stable").tolist():
    after_us = ends_us + time_us[i]
    if room is not None and held is not None:
      fits = (room >= held[i]).all(axis=1)
      if fits.any():
        after_us = np.where(fits, after_us, np.inf)
    share[i] = after_us.argmin()
    ends_us[share[i]] += time_us[i, share[i]]
    if room is not None and held is not None:
      room[share[i]] -= held[i]
  # Equal microbatches in a row share a replica, where gradients are added.
  alike = np.round(time_us / max(float(time_us.max(initial=0.0)), 1e-300), 6)
  _, kinds = np.unique(alike, axis=0, return_inverse=True)
  for kind in range(int(kinds.max(initial=-1)) + 1):
    mine = np.flatnonzero(kinds.reshape(-1) == kind)
    share[mine] = np.sort(share[mine])
  return share
