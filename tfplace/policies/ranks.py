"""Upward and downward ranks of ops, communication free. NumPy only."""

import numpy as np

from tfplace.graph.problem import Problem


def op_ranks(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
  """Upward and downward rank of each op, each op at its fastest device.

  The upward rank is the longest path from an op's start to the end of the
  step; the downward rank is the longest path from the step's start to the op's
  start (HEFT, Topcuoglu et al. 2002, without communication).

  Returns:
    (upward, downward): [num_ops] float64 microseconds each.
  """
  graph = problem.graph
  offsets, edges = graph.out_csr
  successors = graph.edge_dst[edges].tolist()
  bounds = offsets.tolist()
  times = problem.fastest_us.tolist()
  order = graph.topological_order.tolist()
  downward = [0.0] * graph.num_ops
  for op in order:
    end = downward[op] + times[op]
    for successor in successors[bounds[op] : bounds[op + 1]]:
      if end > downward[successor]:
        downward[successor] = end
  upward = [0.0] * graph.num_ops
  for op in reversed(order):
    longest = 0.0
    for successor in successors[bounds[op] : bounds[op + 1]]:
      longest = max(longest, upward[successor])
    upward[op] = longest + times[op]
  return np.array(upward), np.array(downward)
