"""Favorite children of SCT, by a linear program.

SCT: Hanen and Munier, "An approximation algorithm for scheduling dependent
tasks on m processors with small communication delays" (1995), with the program
of Baechi (Jeon et al., SoCC 2020), solved by HiGHS.
"""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tfplace.graph.op_graph import OpGraph
from tfplace.graph.paths import transfers
from tfplace.graph.problem import Problem
from tfplace.placers.list_scheduling.co_placement import only_consumers
from tfplace.placers.list_scheduling.costs import ListTables
from tfplace.simulate.links import mean_transfer

if TYPE_CHECKING:
  from scipy import sparse

# Baechi's public code takes edges whose relaxed variable, 1 for a paid
# transfer, is at most 0.1.
THRESHOLD = 0.9
# The solver cannot be stopped while it reads more pairs than this per second.
_PAIRS_PER_S = 100_000


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
  """Nodes and pairs of the linear program.

  A node is a chain of ops, each the only consumer of the one before. Such a
  consumer is the only possible favorite. A pair is an edge between nodes.

  Attributes:
    time_us: [num_nodes] float64.
    src: [num_pairs] int64 producing node.
    dst: [num_pairs] int64 consuming node.
    transfer_us: [num_pairs] float64 transfer time on a mean link.
    sender: [num_pairs] int64 op of `src` that represents the pair.
    receiver: [num_pairs] int64 op of `dst` that represents the pair.
  """

  time_us: np.ndarray
  src: np.ndarray
  dst: np.ndarray
  transfer_us: np.ndarray
  sender: np.ndarray
  receiver: np.ndarray


def favorite_children(
  problem: Problem, tables: ListTables, time_limit_s: float
) -> np.ndarray:
  """Returns the [num_ops] int64 favorite child of each op, or -1.

  No op is the favorite of two. If the solver times out, edges are taken
  greedily by decreasing transfer time, so only a timeout makes runs differ.

  Args:
    tables: tables of the same problem; its sources follow their first consumer
      and are excluded.
    time_limit_s: time limit of the solver in seconds.
  """
  only = only_consumers(problem.graph)
  only[tables.is_source] = -1
  result, parent = _within_chains(problem.graph, only)
  nodes = chains(problem, only, tables)
  spared = relaxed(nodes, time_limit_s)
  if spared is None:
    chosen = np.argsort(-nodes.transfer_us, kind="stable")
  else:
    chosen = np.flatnonzero(spared >= THRESHOLD)
    chosen = chosen[np.argsort(-spared[chosen], kind="stable")]
  _assign(nodes, chosen, result, parent)
  return result


def _within_chains(
  graph: OpGraph, only: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns [num_ops] favorites and their parents among only consumers.

  If several ops have the same only consumer, the one that sends most is its
  parent.
  """
  sent = graph.op_output_bytes
  parents = np.flatnonzero(only >= 0)
  parents = parents[np.argsort(-sent[parents], kind="stable")]
  children, first = np.unique(only[parents], return_index=True)
  favorite = np.full(graph.num_ops, -1, np.int64)
  parent = np.full(graph.num_ops, -1, np.int64)
  favorite[parents[first]] = children
  parent[children] = parents[first]
  return favorite, parent


def _assign(
  nodes: Chains, chosen: np.ndarray, favorite: np.ndarray, parent: np.ndarray
) -> None:
  """Takes pairs in order if both their nodes are free."""
  sends = np.zeros(len(nodes.time_us), bool)
  receives = np.zeros(len(nodes.time_us), bool)
  for pair in chosen.tolist():
    src, dst = nodes.src[pair], nodes.dst[pair]
    if sends[src] or receives[dst]:
      continue
    sends[src] = receives[dst] = True
    sender, receiver = nodes.sender[pair], nodes.receiver[pair]
    if parent[receiver] >= 0:
      favorite[parent[receiver]] = -1
    favorite[sender], parent[receiver] = receiver, sender


def chains(problem: Problem, only: np.ndarray, tables: ListTables) -> Chains:
  """Merges each op with its [num_ops] only consumer (-1 for none).

  Merging cannot create a cycle.
  """
  graph = problem.graph
  root = np.where(only >= 0, only, np.arange(graph.num_ops))
  while (root != root[root]).any():
    root = root[root]
  per_byte, latency_us = mean_transfer(problem.cluster)
  keep = ~(tables.is_source[graph.edge_src] | tables.is_source[graph.edge_dst])
  keep &= root[graph.edge_src] != root[graph.edge_dst]
  edges = np.flatnonzero(keep)
  # The first op that waits for the sender is the receiver of a pair.
  position = graph.topological_position
  edges = edges[np.argsort(position[graph.edge_dst[edges]], kind="stable")]
  sender, receiver = graph.edge_src[edges], graph.edge_dst[edges]
  keys = root[sender] * graph.num_ops + root[receiver]
  pairs, at, inverse = np.unique(keys, return_index=True, return_inverse=True)
  ends = np.stack(np.divmod(pairs, max(graph.num_ops, 1)))
  pair_of = np.empty(graph.num_edges, np.int64)
  pair_of[edges] = inverse.reshape(-1)
  # An output that several ops of a chain read is sent once.
  sent, _ = transfers(graph, root, among=edges)
  size = np.bincount(pair_of[sent], graph.edge_bytes[sent], len(at))
  nodes, numbered = np.unique(ends, return_inverse=True)
  numbered = numbered.reshape(ends.shape)
  work = np.where(tables.is_source, 0.0, problem.fastest_us)
  return Chains(
    time_us=np.bincount(root, work, graph.num_ops)[nodes],
    src=numbered[0],
    dst=numbered[1],
    transfer_us=size * per_byte + latency_us,
    sender=sender[at].astype(np.int64),
    receiver=receiver[at].astype(np.int64),
  )


def relaxed(nodes: Chains, time_limit_s: float) -> np.ndarray | None:
  """Solves the relaxed program; returns [num_pairs] y from 0 to 1.

  y is 1 for a pair without a transfer. The program minimizes w over y and s >=
  0 such that s_i + p_i + c (1 - y) <= s_j for each pair (i, j) and, for each
  node, s + p <= w, its outgoing y sum to at most 1, and so do its incoming y.

  Returns None if the solver stops without an optimum, usually at the time
  limit, or could only read the program until then.
  """
  from scipy import optimize  # Imported here because it is slow to import.

  num_pairs = len(nodes.src)
  if not num_pairs:
    return np.zeros(0)
  if num_pairs > _PAIRS_PER_S * time_limit_s:
    return None
  matrix, limits = _constraints(nodes)
  width = matrix.shape[1]
  upper = np.full(width, np.inf)
  upper[:num_pairs] = 1.0
  goal = np.zeros(width)
  goal[-1] = 1.0
  solution = optimize.linprog(
    goal,
    A_ub=matrix,
    b_ub=limits,
    bounds=np.stack((np.zeros(width), upper), axis=1),
    method="highs-ds",
    # Presolving costs more than it saves on recurrent models.
    options={"time_limit": time_limit_s, "presolve": False},
  )
  return solution.x[:num_pairs] if solution.status == 0 else None


def _constraints(nodes: Chains) -> "tuple[sparse.csr_matrix, np.ndarray]":
  """Builds the rows of `relaxed` and their upper limits.

  The columns are y, s and w. Times are fractions of all work, which keeps
  numbers near 1.
  """
  from scipy import sparse

  pair, count = np.arange(len(nodes.src)), len(nodes.time_us)
  unit = max(float(nodes.time_us.sum()), 1e-9)
  time, transfer = nodes.time_us / unit, nodes.transfer_us / unit
  shape, ones = (count, len(pair)), np.ones(len(pair))
  sends = sparse.csr_matrix((ones, (nodes.src, pair)), shape)
  receives = sparse.csr_matrix((ones, (nodes.dst, pair)), shape)
  matrix = sparse.bmat(
    [
      [-sparse.diags(transfer), (sends - receives).T, None],
      [None, sparse.eye(count), -np.ones((count, 1))],
      [sends, None, None],
      [receives, None, None],
    ],
    "csr",
  )
  before = -(time[nodes.src] + transfer)
  return matrix, np.concatenate((before, -time, np.ones(2 * count)))
