"""Pipeline stages: balanced cuts of a row of layers, by dynamic programming."""

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
  within: tuple[np.ndarray, float] | None = None,
) -> np.ndarray:
  """Cuts a row of layers into stages so that the slowest stage is fastest.

  A stage takes the longer of its layers' time and the transfers across the
  border before it. Among equal cuts, the one with less total transfer time
  wins.

  Args:
    work_us: [num_layers] microseconds of each layer.
    cut_us: [num_layers - 1] microseconds of the transfers across each border.
    within: [num_layers] bytes that each layer holds, and the maximum per stage.
      If no cut satisfies it, the excess is minimized.

  Returns:
    [num_layers] stage of each layer.
  """
  count = len(work_us)
  stages = max(1, min(stages, count))
  before = np.concatenate(([0.0], cut_us, [0.0]))
  small = 1e-6 / max(1.0, float(before.sum()))
  spans = _spans(work_us)
  taken = np.where(spans >= 0, np.maximum(spans, before[:, np.newaxis]), 0)
  if within is not None:
    held, most = within
    over = np.maximum(_spans(held) - most, 0.0) / max(float(held.sum()), 1.0)
    longest = float(taken.max(initial=0.0))
    taken += np.where(over > 0, longest * (1.0 + over), 0.0)
  # Time of the slowest stage for each number of first layers.
  slowest = np.full(count + 1, np.inf)
  slowest[0] = 0.0
  came_from = []
  for _ in range(stages):
    rows = np.maximum(slowest[:, np.newaxis], taken)
    rows += small * before[:, np.newaxis]
    # Every stage has at least one layer.
    rows[np.tril_indices(count + 1)] = np.inf
    came_from.append(rows.argmin(axis=0))
    slowest = rows.min(axis=0)
  return _traced_back(came_from)


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
