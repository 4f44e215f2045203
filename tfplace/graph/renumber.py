"""The same graph with its ops in another order, for locality in memory.

Positions have a meaning in the rules of the simulated step: whoever
simulates a renumbered graph says which positions its ops had.
"""

import dataclasses

import numpy as np

from tfplace.graph.op_graph import OpGraph


def renumber(graph: OpGraph, order: np.ndarray) -> OpGraph:
  """The graph whose op i is `graph`'s op `order[i]`; edges keep their order.

  Args:
    graph: any graph.
    order: [num_ops] a permutation of its positions.
  """
  rank = np.empty(graph.num_ops, np.int32)
  rank[order] = np.arange(graph.num_ops, dtype=np.int32)
  counts = np.diff(graph.output_offsets)[order]
  offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
  # Where each output was: its op's first one, and how many come between.
  within = np.arange(len(graph.output_bytes)) - np.repeat(offsets[:-1], counts)
  was = np.repeat(graph.output_offsets[:-1][order], counts) + within
  return dataclasses.replace(
    graph,
    names=tuple(graph.names[i] for i in order),
    types=tuple(graph.types[i] for i in order),
    time_us={kind: us[order] for kind, us in graph.time_us.items()},
    output_offsets=offsets,
    output_bytes=graph.output_bytes[was],
    persistent_bytes=graph.persistent_bytes[order],
    temp_bytes=graph.temp_bytes[order],
    colocation=graph.colocation[order],
    edge_src=rank[graph.edge_src],
    edge_dst=rank[graph.edge_dst],
    op_extra={int(rank[i]): extra for i, extra in graph.op_extra.items()},
  )
