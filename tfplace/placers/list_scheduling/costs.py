"""What the list schedulers read: a problem as arrays, and ranks of its ops.

What a placement is worth is for the evaluator to say; here are estimates.
"""

from typing import NamedTuple

import numpy as np

from tfplace.placers.compiled import kernel
from tfplace.placers.groups import GroupGraph

# What can have ended within this share of the longest path follows its first
# consumer: reading a weight decides nothing.
_CHEAP = 1e-3


class ListTables(NamedTuple):
  """A problem for list schedulers.

  Attributes:
    time_us: [num_ops, num_devices] float64, inf where disallowed.
    overhead_us: [num_devices] float64.
    us_per_byte: [num_devices, num_devices] float64, 0 without a link.
    latency_us: [num_devices, num_devices] float64, inf without a link.
    gap_us: [num_devices, num_devices] float64.
    channel: [num_devices, num_devices] int32, -1 without a link.
    in_offsets: [num_ops + 1]; in_src, in_bytes: [num_edges] by consumer.
    out_offsets: [num_ops + 1]; out_dst, out_bytes: [num_edges] by producer.
    topological: [num_ops] producers first.
    is_source: [num_ops] bool: follows its first consumer.
    group_of: [num_ops].
    group_offsets, group_entries: neighbours of groups, see `GroupGraph`.
  """

  time_us: np.ndarray
  overhead_us: np.ndarray
  us_per_byte: np.ndarray
  latency_us: np.ndarray
  gap_us: np.ndarray
  channel: np.ndarray
  in_offsets: np.ndarray
  in_src: np.ndarray
  in_bytes: np.ndarray
  out_offsets: np.ndarray
  out_dst: np.ndarray
  out_bytes: np.ndarray
  topological: np.ndarray
  is_source: np.ndarray
  group_of: np.ndarray
  group_offsets: np.ndarray
  group_entries: np.ndarray


def list_tables(groups: GroupGraph) -> ListTables:
  """Packs a problem."""
  problem = groups.problem
  graph, cluster = problem.graph, problem.cluster
  in_offsets, by_dst = graph.in_csr
  out_offsets, by_src = graph.out_csr
  offsets, entries, _ = groups.neighbours
  allowed = groups.allowed[problem.group_of]
  limit_us = _CHEAP * problem.longest_path_us
  in_src = graph.edge_src[by_dst]
  return ListTables(
    time_us=np.where(allowed, problem.time_us, np.inf),
    overhead_us=cluster.op_overhead_us,
    us_per_byte=np.where(cluster.channel >= 0, 1 / cluster.bandwidth, 0.0),
    latency_us=np.where(cluster.channel >= 0, cluster.latency_us, np.inf),
    gap_us=cluster.gap_us,
    channel=cluster.channel,
    in_offsets=in_offsets,
    in_src=in_src,
    in_bytes=graph.edge_bytes[by_dst],
    out_offsets=out_offsets,
    out_dst=graph.edge_dst[by_src],
    out_bytes=graph.edge_bytes[by_src],
    topological=graph.topological_order,
    is_source=_ends(
      problem.fastest_us, in_offsets, in_src, graph.topological_order
    )
    <= limit_us,
    group_of=problem.group_of,
    group_offsets=offsets,
    group_entries=entries,
  )


@kernel
def _ends(
  op_us: np.ndarray,
  in_offsets: np.ndarray,
  in_src: np.ndarray,
  topological: np.ndarray,
) -> np.ndarray:
  """[num_ops] earliest ends, communication free."""
  result = np.zeros(len(topological))
  for op in topological:
    start = 0.0
    for i in range(in_offsets[op], in_offsets[op + 1]):
      start = max(start, result[in_src[i]])
    result[op] = start + op_us[op]
  return result


def upward_ranks(
  tables: ListTables, op_us: np.ndarray, per_byte: float, latency_us: float
) -> np.ndarray:
  """[num_ops] longest path to the end of the step, communication included.

  Args:
    tables: of the problem.
    op_us: [num_ops] microseconds that an op counts for.
    per_byte: microseconds that a byte on an edge counts for.
    latency_us: microseconds that an edge counts for, besides.
  """
  return _upward(
    tables.topological,
    tables.out_offsets,
    tables.out_dst,
    tables.out_bytes,
    op_us,
    per_byte,
    latency_us,
  )


@kernel
def _upward(
  topological: np.ndarray,
  out_offsets: np.ndarray,
  out_dst: np.ndarray,
  out_bytes: np.ndarray,
  op_us: np.ndarray,
  per_byte: float,
  latency_us: float,
) -> np.ndarray:
  result = np.zeros(len(topological))
  for at in range(len(topological) - 1, -1, -1):
    op = topological[at]
    longest = 0.0
    for i in range(out_offsets[op], out_offsets[op + 1]):
      after = result[out_dst[i]] + out_bytes[i] * per_byte + latency_us
      longest = max(longest, after)
    result[op] = longest + op_us[op]
  return result


def mean_times(tables: ListTables) -> np.ndarray:
  """[num_ops] float64: mean over the devices that can run each op."""
  allowed = np.isfinite(tables.time_us)
  total = np.where(allowed, tables.time_us, 0.0).sum(axis=1)
  return total / allowed.sum(axis=1)


def mean_link(tables: ListTables) -> tuple[float, float]:
  """Mean microseconds per byte and latency over the links; 0 without any."""
  links = tables.channel >= 0
  if not links.any():
    return 0.0, 0.0
  return (
    float(tables.us_per_byte[links].mean()),
    float(tables.latency_us[links].mean()),
  )


def rank_order(tables: ListTables, ranks: np.ndarray) -> np.ndarray:
  """[num_ops] int64: ops by decreasing rank, ties in topological order."""
  position = np.empty(len(ranks), np.int64)
  position[tables.topological] = np.arange(len(ranks))
  return np.lexsort((position, -ranks))
