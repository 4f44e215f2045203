"""Distribution of microbatches over devices, classified by parallelism.

The patterns are data parallelism, a pipeline, pipelines side by side and a
mixture. They are inferred from the placement, weighted by op time, because a
search does not know them and rarely follows one exactly.
"""

import dataclasses

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfplace.report.layers import layers_of
from tfplace.report.rows import compute_us
from tfplace.simulate import Schedule

ONE_DEVICE = "one device"
DATA_PARALLEL = "data parallel"
PIPELINE = "pipeline"
PIPELINES = "pipelines side by side"
MIXTURE = "mixture"
_PATTERN_SHARE = 0.8  # of the work defines a pattern
_LEAST_USE = 0.1  # of a device by a microbatch, in equal shares

_Groups = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Parallelism:
  """Distribution of the microbatches' work over devices.

  Attributes:
    pattern: one of the names above.
    followed: fraction of the work that follows the pattern; 1 for a mixture.
    by_microbatch: whether devices rather share microbatches than layers.
    time_us: [num_microbatches, num_devices] op time.
    groups: (microbatches, devices) that work only on each other, ascending.
  """

  pattern: str
  followed: float
  by_microbatch: bool
  time_us: np.ndarray
  groups: _Groups


def find_parallelism(schedule: Schedule) -> Parallelism:
  """Analyzes the microbatches of a step."""
  graph, num_devices = schedule.placement.problem.graph, len(schedule.memory)
  ops = np.flatnonzero(graph.microbatch >= 0)
  microbatch = graph.microbatch[ops].astype(np.int64)
  layer = layers_of(schedule).layer_of[ops]
  device, us = schedule.placement.devices[ops], compute_us(schedule)[ops]

  def by_device(key: np.ndarray) -> np.ndarray:
    """Sums times of each key and device: [num_keys, num_devices]."""
    keys, row = np.unique(key, return_inverse=True)
    shape = len(keys), num_devices
    return scipy.sparse.coo_array((us, (row, device)), shape).toarray()

  time_us = np.zeros((int(microbatch.max()) + 1, num_devices))
  time_us[np.unique(microbatch)] = by_device(microbatch)
  number, groups = _groups(time_us)
  sums = {
    DATA_PARALLEL: by_device(microbatch),
    PIPELINE: by_device(layer),
    PIPELINES: by_device(layer * len(time_us) + number[microbatch]),
  }
  whole_us = max(float(us.sum()), 1e-300)
  shares = {
    name: float(x.max(axis=1).sum()) / whole_us for name, x in sums.items()
  }
  followed = {
    name: share
    for name, share in shares.items()
    if share >= _PATTERN_SHARE and len(np.unique(sums[name].argmax(axis=1))) > 1
  }
  if sum(len(devices) for _, devices in groups) < 2:
    most_us = float(time_us.sum(axis=0).max())
    followed = {ONE_DEVICE: most_us / whole_us}
  pattern = next(iter(followed), MIXTURE)
  by_microbatch = pattern == DATA_PARALLEL or (
    pattern == MIXTURE and shares[DATA_PARALLEL] >= shares[PIPELINE]
  )
  share = followed.get(pattern, 1.0)
  return Parallelism(pattern, share, by_microbatch, time_us, groups)


def _groups(time_us: np.ndarray) -> tuple[np.ndarray, _Groups]:
  """Finds connected microbatches and devices in `time_us`.

  Returns:
    [num_microbatches] group of each, and the groups.
  """
  count, num_devices = time_us.shape
  least_us = _LEAST_USE / num_devices * time_us.sum(axis=1, keepdims=True)
  used = (time_us >= least_us) & (time_us > 0)
  edges = scipy.sparse.bmat([[None, used], [used.T, None]])
  _, number = csgraph.connected_components(edges)
  busy = used.any(axis=1)
  members = (
    (np.flatnonzero(number[:count] == i), np.flatnonzero(number[count:] == i))
    for i in dict.fromkeys(number[:count][busy].tolist())
  )
  groups = tuple((tuple(m.tolist()), tuple(d.tolist())) for m, d in members)
  return number[:count].astype(np.int64), groups
