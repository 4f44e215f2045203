"""Ops between microbatches and variables: sums of gradients, and relays."""

import dataclasses

import numpy as np

from tfplace.graph.op_names import UNKNOWN
from tfplace.graph.paths import descendants
from tfplace.placers.groups import GroupGraph


@dataclasses.dataclass(frozen=True, eq=False)
class Exchanges:
  """Groups that combine microbatches or bring variables to them.

  Sums read nothing but microbatches and other sums. Relays read nothing but a
  variable, and nothing but microbatches reads them.

  Attributes:
    first: [num_groups] first microbatch that each serves, UNKNOWN for other
      groups.
    last: [num_groups] last microbatch.
    variable: [num_groups] group of the variable.
    is_relay: [num_groups] whether the group is a relay.
    adds_last: [num_groups] whether the group is a sum that reads its last
      microbatch itself, and not a sum over it.
  """

  first: np.ndarray
  last: np.ndarray
  variable: np.ndarray
  is_relay: np.ndarray
  adds_last: np.ndarray


def find_exchanges(groups: GroupGraph, microbatch: np.ndarray) -> Exchanges:
  """Finds sums and relays.

  Args:
    groups: groups of a microbatched step.
    microbatch: [num_groups] microbatch of each group, UNKNOWN if shared.
  """
  is_variable = groups.persistent_bytes > 0
  is_free = (microbatch == UNKNOWN) & ~is_variable
  first, last = _of_sums(groups, is_free)
  variable = readers(groups, microbatch, ~is_free)
  src, dst, _ = groups.edges
  adds_last = np.zeros_like(is_free)
  adds_last[dst[is_free[dst] & (microbatch[src] == last[dst])]] = True
  adds_last &= first != UNKNOWN
  other = is_free.copy()  # Free groups that are no relays.
  other[dst[~is_variable[src]]] = False
  is_relay = other & (np.bincount(dst, minlength=len(other)) == 1)
  is_relay[src[microbatch[dst] == UNKNOWN]] = False
  is_relay &= first == UNKNOWN  # A sum may read a variable in a microbatch.
  passed = is_relay[dst]
  variable[dst[passed]] = src[passed]
  served = is_relay[src]
  first[is_relay] = groups.problem.graph.num_microbatches
  np.minimum.at(first, src[served], microbatch[dst[served]])
  np.maximum.at(last, src[served], microbatch[dst[served]])
  first = np.where(last == UNKNOWN, UNKNOWN, first)
  is_relay &= last != UNKNOWN
  return Exchanges(first, last, variable, is_relay, adds_last)


def _of_sums(
  groups: GroupGraph, is_free: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns [num_groups] first and last microbatch of each sum, or UNKNOWN."""
  problem, graph = groups.problem, groups.problem.graph
  offsets, edges = graph.in_csr
  sources, bounds = graph.edge_src[edges].tolist(), offsets.tolist()
  low, high = graph.microbatch.tolist(), graph.microbatch.tolist()
  order = graph.topological_order
  for op in order[graph.microbatch[order] == UNKNOWN].tolist():
    read = sources[bounds[op] : bounds[op + 1]]
    if read and all(low[source] != UNKNOWN for source in read):
      low[op] = min(low[source] for source in read)
      high[op] = max(high[source] for source in read)
  first = np.full(groups.num_groups, graph.num_microbatches)
  last = np.full(groups.num_groups, UNKNOWN)
  np.minimum.at(first, problem.group_of, low)
  np.maximum.at(last, problem.group_of, high)
  is_sum = is_free & (first != UNKNOWN)
  return np.where(is_sum, first, UNKNOWN), np.where(is_sum, last, UNKNOWN)


def served_variables(groups: GroupGraph, microbatch: np.ndarray) -> np.ndarray:
  """Returns [num_groups] variable that each slot of an optimizer serves.

  Slots are variables that no microbatch reads, but the update of a variable
  that one reads; of several, such as for a learning rate, the last. All other
  groups have themselves.
  """
  graph, group_of = groups.problem.graph, groups.problem.group_of
  inside = graph.microbatch != UNKNOWN
  is_read = np.zeros(groups.num_groups, bool)
  is_read[group_of[descendants(inside, graph.edge_dst, graph.edge_src)]] = True
  is_variable = (groups.persistent_bytes > 0) & (microbatch == UNKNOWN)
  served = np.where((is_read & is_variable)[group_of], group_of, UNKNOWN)
  offsets, edges = graph.out_csr
  near, bounds = graph.edge_dst[edges].tolist(), offsets.tolist()
  of_op, order = served.tolist(), graph.topological_order
  for op in order[(served[order] == UNKNOWN) & ~inside[order]][::-1].tolist():
    of_op[op] = max(
      (of_op[i] for i in near[bounds[op] : bounds[op + 1]]), default=UNKNOWN
    )
  result = np.full(groups.num_groups, UNKNOWN)
  np.maximum.at(result, group_of, of_op)
  is_slot = is_variable & ~is_read & (result != UNKNOWN)
  return np.where(is_slot, result, np.arange(groups.num_groups))


def readers(
  groups: GroupGraph, microbatch: np.ndarray, is_known: np.ndarray
) -> np.ndarray:
  """Returns [num_groups] known group that each unknown group leads to.

  An unknown group leads to the shared reader of most of its bytes, and on from
  there. Known groups, and groups that lead to none, lead to themselves.
  """
  src, dst, size = groups.edges
  shared = microbatch == UNKNOWN
  rows = np.flatnonzero(shared[src] & shared[dst] & ~is_known[src])
  rows = rows[np.lexsort((dst[rows], -size[rows], src[rows]))]
  reader = np.arange(groups.num_groups)
  readers, first = np.unique(src[rows], return_index=True)
  reader[readers] = dst[rows[first]]
  for _ in range(int(groups.num_groups).bit_length()):
    reader = reader[reader]
  return reader
