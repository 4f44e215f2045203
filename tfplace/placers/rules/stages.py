"""Pipeline stages: balanced cuts of a row of layers, by dynamic programming."""

import numpy as np


def merged_units(
  unit: np.ndarray, work_us: np.ndarray, most: int
) -> np.ndarray:
  """Merges neighboring units (layers) of [num_groups] groups down to `most`."""
  count = int(unit.max(initial=0)) + 1
  if count <= most:
    return unit
  work = np.cumsum(np.bincount(unit, work_us, count))
  block = np.minimum(work / max(work[-1], 1e-300) * most, most - 1).astype(int)
  return np.unique(block, return_inverse=True)[1].reshape(-1)[unit]


def balanced_stages(
  work_us: np.ndarray,
  cut_us: np.ndarray,
  stages: int,
  within: tuple[np.ndarray, float] | None = None,
) -> np.ndarray:
  """Cuts a row of units into stages so that the slowest stage is fastest.

  A stage takes the longer of its units' time and the transfers across the
  border before it. Among equal cuts, the one with less total transfer time
  wins.

  Args:
    work_us: [num_units] microseconds of each unit.
    cut_us: [num_units - 1] microseconds of the transfers across each border.
    stages: maximum number of stages.
    within: [num_units] bytes that each unit holds, and the maximum per stage.
      If no cut satisfies it, the excess is minimized.

  Returns:
    [num_units] stage of each unit.
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
  # Time of the slowest stage for each number of first units.
  slowest = np.full(count + 1, np.inf)
  slowest[0] = 0.0
  came_from = []
  for _ in range(stages):
    rows = np.maximum(slowest[:, np.newaxis], taken)
    rows += small * before[:, np.newaxis]
    # Every stage has at least one unit.
    rows[np.tril_indices(count + 1)] = np.inf
    came_from.append(rows.argmin(axis=0))
    slowest = rows.min(axis=0)
  return _traced_back(came_from)


def _spans(of_unit: np.ndarray) -> np.ndarray:
  """Returns [num_units + 1, num_units + 1] sums over all ranges of units."""
  ends = np.concatenate(([0.0], np.cumsum(of_unit)))
  return ends[np.newaxis, :] - ends[:, np.newaxis]


def _traced_back(came_from: list[np.ndarray]) -> np.ndarray:
  """Reconstructs [num_units] stages from the start of each stage's best cut."""
  end = len(came_from[0]) - 1
  stage = np.zeros(end, np.int64)
  for number in range(len(came_from) - 1, -1, -1):
    begin = int(came_from[number][end])
    stage[begin:end] = number
    end = begin
  return stage
