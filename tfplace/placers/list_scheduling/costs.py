"""Costs of a problem as arrays for the list schedulers."""

from typing import NamedTuple

import numpy as np

from tfplace.placers.groups import GroupGraph
from tfplace.simulate.links import link_table

# An op that can end within this share of the longest path, such as the read of
# a weight, follows its first consumer.
_CHEAP = 1e-3


class ListTables(NamedTuple):
  """A problem packed for list schedulers.

  Attributes:
    time_us: [num_ops, num_devices] float64, inf where an op may not run.
    overhead_us: [num_devices] float64.
    links: [num_devices, num_devices] records, see `links.LINK`.
    in_offsets: [num_ops + 1]; in_src, in_bytes: [num_edges] by consumer.
    out_offsets: [num_ops + 1]; out_dst: [num_edges] by producer.
    is_source: [num_ops] bool; True if the op follows its first consumer.
    group_of: [num_ops] group of each op.
    group_offsets, group_entries: neighbors of groups, see `GroupGraph`.
  """

  time_us: np.ndarray
  overhead_us: np.ndarray
  links: np.ndarray
  in_offsets: np.ndarray
  in_src: np.ndarray
  in_bytes: np.ndarray
  out_offsets: np.ndarray
  out_dst: np.ndarray
  is_source: np.ndarray
  group_of: np.ndarray
  group_offsets: np.ndarray
  group_entries: np.ndarray


def list_tables(groups: GroupGraph) -> ListTables:
  """Packs the problem of `groups`."""
  problem = groups.problem
  graph, cluster = problem.graph, problem.cluster
  in_offsets, by_dst = graph.in_csr
  out_offsets, by_src = graph.out_csr
  offsets, entries, _ = groups.neighbors
  allowed = groups.allowed[problem.group_of]
  limit_us = _CHEAP * problem.longest_path_us
  return ListTables(
    time_us=np.where(allowed, problem.time_us, np.inf),
    overhead_us=cluster.op_overhead_us,
    links=link_table(cluster),
    in_offsets=in_offsets,
    in_src=graph.edge_src[by_dst],
    in_bytes=graph.edge_bytes[by_dst],
    out_offsets=out_offsets,
    out_dst=graph.edge_dst[by_src],
    is_source=problem.earliest_start_us + problem.fastest_us <= limit_us,
    group_of=problem.group_of,
    group_offsets=offsets,
    group_entries=entries,
  )
