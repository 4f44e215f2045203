"""What the names of a model's ops tell a policy: its layers, steps, segments.

Graph structure alone hardly tells one unrolled step or segment from the next.
The axes are those that the placer `axes` splits along (ours, as that is).
"""

import numpy as np

from tfplace.placers.scopes import UNKNOWN

PER_NODE = 2  # features of each axis
PER_PAIR = 3


def of_nodes(axes: np.ndarray) -> np.ndarray:
  """[A, N] ranks -> [N, PER_NODE * A] float32: how far along each axis, 0 to 1
  and 0 where on none; whether on it."""
  columns = np.maximum(_along(axes), 0.0), axes != UNKNOWN
  return np.concatenate(columns).T.astype(np.float32)


def of_pairs(
  axes: np.ndarray, rank: np.ndarray, number: np.ndarray
) -> np.ndarray:
  """[A, N] ranks -> [N, D, PER_PAIR * A] float32: a decision on a device.

  Per axis: how many blocks lie between the decision and the device, if the
  devices of its kind share the axis in equal blocks, -2 to 2; whether it is in
  the device's block; whether it is the device's turn, if they are dealt out in
  turn. All 0 where on no axis.

  Args:
    axes: ranks, UNKNOWN where on none.
    rank: [D] of each device among those of its kind.
    number: [D] of those.
  """
  parts = []
  for axis, along in zip(axes, _along(axes), strict=True):
    block = along[:, None] * number - (rank + 0.5)
    turn = axis[:, None] % number == rank
    part = np.stack((np.clip(block, -2, 2), abs(block) <= 0.5, turn), axis=-1)
    part[axis == UNKNOWN] = 0.0
    parts.append(part)
  return np.concatenate(parts, axis=-1).astype(np.float32)


def _along(axes: np.ndarray) -> np.ndarray:
  """[A, N] ranks -> how far along its axis each is; below 0 where on none."""
  return (axes + 0.5) / (axes.max(axis=1, initial=0, keepdims=True) + 1.0)
