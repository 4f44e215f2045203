"""Balanced stages of a pipeline, and shares of microbatches among replicas.

Stages are cuts of a row of layers, by dynamic programming.
"""

from collections.abc import Iterator

import numpy as np


def merged_layers(
  layer: np.ndarray, work_us: np.ndarray, most: int
) -> np.ndarray:
  """Merges neighboring layers of [num_groups] groups down to `most`."""
  count = int(layer.max(initial=0)) + 1
  if count <= most:
    return layer
  work = np.cumsum(np.bincount(layer, work_us, count))
  block = np.minimum(work / max(work[-1], 1e-300) * most, most - 1).astype(int)
  return np.unique(block, return_inverse=True)[1].reshape(-1)[layer]


def balanced_stages(
  work_us: np.ndarray,
  cut_us: np.ndarray,
  stages: int,
  within: tuple[np.ndarray, float | np.ndarray] | None = None,
) -> np.ndarray:
  """Cuts a row of layers into stages so that the slowest stage is fastest.

  A stage takes the longer of its layers' time and the transfers across the
  border before it. Among equal cuts, the one with less total transfer time
  wins.

  Args:
    work_us: [num_layers] microseconds of each layer, or [stages, num_layers] on
      the device of each stage.
    cut_us: [num_layers - 1] microseconds of the transfers across each border.
    within: [num_layers] bytes that each layer holds, and the maximum of a stage
      or [stages] of each. If no cut satisfies it, the excess is minimized.

  Returns:
    [num_layers] stage of each layer.
  """
  count = work_us.shape[-1]
  stages = max(1, min(stages, count))
  before = np.concatenate(([0.0], cut_us, [0.0]))
  small = 1e-6 / max(1.0, float(before.sum()))
  taken = _stage_times(work_us, before, within, stages)
  # Time of the slowest stage for each number of first layers.
  slowest = np.full(count + 1, np.inf)
  slowest[0] = 0.0
  came_from = []
  for of_stage in taken:
    rows = np.maximum(slowest[:, np.newaxis], of_stage)
    rows += small * before[:, np.newaxis]
    # Every stage has at least one layer.
    rows[np.tril_indices(count + 1)] = np.inf
    came_from.append(rows.argmin(axis=0))
    slowest = rows.min(axis=0)
  return _traced_back(came_from)


def _stage_times(
  work_us: np.ndarray,
  before: np.ndarray,
  within: tuple[np.ndarray, float | np.ndarray] | None,
  stages: int,
) -> Iterator[np.ndarray]:
  """Yields the time of every range of layers as a stage, stage by stage.

  Each is [num_layers + 1, num_layers + 1]. A range beyond the memory of its
  stage takes longer than any other.
  """
  rows = np.atleast_2d(work_us)
  longest = max(float(np.cumsum(rows, axis=1)[:, -1:].max(initial=0.0)), 0.0)
  longest = max(longest, float(before.max(initial=0.0)))
  held, limits = (np.zeros(rows.shape[1]), np.inf) if within is None else within
  most = np.ravel(limits)
  taken = np.zeros((0, 0))
  for stage in range(stages):
    if stage < max(len(rows), len(most)):
      spans = _spans(rows[min(stage, len(rows) - 1)])
      taken = np.where(spans >= 0, np.maximum(spans, before[:, np.newaxis]), 0)
      over = np.maximum(_spans(held) - most[min(stage, len(most) - 1)], 0.0)
      over /= max(float(held.sum()), 1.0)
      taken += np.where(over > 0, longest * (1.0 + over), 0.0)
    yield taken


def _spans(of_layer: np.ndarray) -> np.ndarray:
  """Returns [num_layers + 1, num_layers + 1] sums over all ranges of layers."""
  ends = np.concatenate(([0.0], np.cumsum(of_layer)))
  return ends[np.newaxis, :] - ends[:, np.newaxis]


def _traced_back(came_from: list[np.ndarray]) -> np.ndarray:
  """Reconstructs [num_layers] stages from the starts of the best cuts."""
  end = len(came_from[0]) - 1
  stage = np.zeros(end, np.int64)
  for number in range(len(came_from) - 1, -1, -1):
    begin = int(came_from[number][end])
    stage[begin:end] = number
    end = begin
  return stage


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
  shares = [_dealt(time_us)]
  sums = np.zeros_like(memory)
  np.add.at(sums, shares[0], held)
  if (sums > memory).any():
    shares.append(_dealt(time_us, held, memory))
  return shares


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
    alike_rows = np.flatnonzero(kinds.reshape(-1) == kind)
    share[alike_rows] = np.sort(share[alike_rows])
  return share
