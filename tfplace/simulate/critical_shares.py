"""How much of a step's critical path each op answers for, for many placements.

`critical_path` explains one schedule to people; this gives learners a number
per op, of a batch, from nothing but the ops' starts. A kernel walks back from
the last end: the time of an op on the path is its own; the time between an
output and its arrival elsewhere, waits for the channel included, is shared by
producer and consumer; a wait for the device leads on to the op that held it.
"""

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.simulate.jit import kernel


def critical_shares(
  problem: Problem, devices: np.ndarray, starts: np.ndarray
) -> np.ndarray:
  """[B, num_ops] float64 microseconds; a row sums to the step time.

  Args:
    problem: what was simulated.
    devices: [B, num_ops] int32 placements with finite step times.
    starts: [B, num_ops] float64 start of every op, from `Simulator.run`.
  """
  graph = problem.graph
  offsets, edges = graph.in_csr
  sources = graph.edge_src[edges]
  overhead_us = problem.cluster.op_overhead_us
  shares = np.zeros(starts.shape)
  for row, (at, start) in enumerate(zip(devices, starts, strict=True)):
    end = start + problem.time_us[np.arange(graph.num_ops), at]
    order = np.lexsort((end, start, at)).astype(np.int32)
    bounds = np.searchsorted(
      at[order], np.arange(problem.cluster.num_devices + 1)
    )
    free = end + np.where(end > start, overhead_us[at], 0.0)
    last = int(end.argmax())
    times = (start, end, free, start[order])
    _walk(offsets, sources, at, *times, order, bounds, last, shares[row])
  return shares


@kernel
def _walk(
  offsets: np.ndarray,
  sources: np.ndarray,
  devices: np.ndarray,
  start: np.ndarray,
  end: np.ndarray,
  free: np.ndarray,
  ordered_start: np.ndarray,
  order: np.ndarray,
  bounds: np.ndarray,
  last: int,
  shares: np.ndarray,
) -> None:
  """Adds one placement's shares, from its last end back to the begin."""
  op, until = last, end[last]
  while op >= 0:
    shares[op] += until - start[op]
    until = start[op]
    here, there = -1, -1
    for i in range(offsets[op], offsets[op + 1]):
      source = sources[i]
      if devices[source] != devices[op]:
        if there < 0 or end[source] > end[there]:
          there = source
      elif end[source] == until:
        here = source
    if here < 0:
      # The last op to start before it on its device.
      low, high = bounds[devices[op]], bounds[devices[op] + 1]
      first = low
      while low < high:
        middle = (low + high) // 2
        if ordered_start[middle] < until:
          low = middle + 1
        else:
          high = middle
      held = order[low - 1] if low > first else -1
      if there < 0 or (held >= 0 and abs(free[held] - until) <= 1e-9 * until):
        here = held
    if here < 0 and there >= 0:
      half = 0.5 * (until - end[there])
      shares[op] += half
      shares[there] += half
      until = end[there]
      here = there
    op = here
