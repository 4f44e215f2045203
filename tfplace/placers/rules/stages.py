"""Layers cut into the stages of a pipeline, by dynamic programming."""

import numpy as np


def merged_units(
  unit: np.ndarray, work_us: np.ndarray, most: int
) -> np.ndarray:
  """[num_groups] units, neighbours merged where there are more than `most`."""
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
  """[num_units] stages of units in a row, so that the slowest is fastest.

  A stage takes its units' time, or that of what crosses the border before it,
  whichever is more; of equals, less crosses in all.

  Args:
    work_us: [num_units] microseconds of each unit.
    cut_us: [num_units - 1] microseconds of what crosses each border.
    stages: how many there may be; fewer where there are fewer units.
    within: [num_units] bytes that each unit holds, and the most that a stage
      may; where no cut keeps to that, the least is too much.
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
  slowest = np.full(count + 1, np.inf)  # of the first units, in `s` stages
  slowest[0] = 0.0
  came_from = []
  for _ in range(stages):
    rows = np.maximum(slowest[:, np.newaxis], taken)
    rows += small * before[:, np.newaxis]
    rows[np.tril_indices(count + 1)] = np.inf  # a stage has a unit
    came_from.append(rows.argmin(axis=0))
    slowest = rows.min(axis=0)
  return _traced_back(came_from)


def _spans(of_unit: np.ndarray) -> np.ndarray:
  """[num_units + 1, num_units + 1] sums of the units from one to another."""
  ends = np.concatenate(([0.0], np.cumsum(of_unit)))
  return ends[np.newaxis, :] - ends[:, np.newaxis]


def _traced_back(came_from: list[np.ndarray]) -> np.ndarray:
  """[num_units] stages, from where each stage that ends somewhere begins."""
  end = len(came_from[0]) - 1
  stage = np.zeros(end, np.int64)
  for number in range(len(came_from) - 1, -1, -1):
    begin = int(came_from[number][end])
    stage[begin:end] = number
    end = begin
  return stage
