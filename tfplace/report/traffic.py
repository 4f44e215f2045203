"""Which transfer of a simulated step carries which edge of the graph."""

import numpy as np

from tfplace.simulate import Schedule

NOT_SENT = -1


def transfer_of_edge(schedule: Schedule) -> np.ndarray:
  """[num_edges] int64 number of the transfer, -1 within one device."""
  moves, devices = schedule.transfers, schedule.placement.devices
  graph = schedule.placement.problem.graph
  outputs = 2 + int(graph.edge_output.max(initial=0))
  count = schedule.placement.problem.cluster.num_devices

  def key(op: np.ndarray, output: np.ndarray, to: np.ndarray) -> np.ndarray:
    return (op.astype(np.int64) * outputs + output + 1) * count + to

  result = np.full(graph.num_edges, NOT_SENT, np.int64)
  target = devices[graph.edge_dst]
  sent = np.flatnonzero(devices[graph.edge_src] != target)
  known = key(moves.src_op, moves.output, moves.dst)
  by_key = np.argsort(known)
  wanted = key(graph.edge_src[sent], graph.edge_output[sent], target[sent])
  if len(sent):
    result[sent] = by_key[np.searchsorted(known[by_key], wanted)]
  return result
