"""Execution order: the order in which a device takes its ready ops.

Devices take ops by arrival, the default of placement files, or by a rank that
is fixed in advance. A chain of control edges per device enforces a rank order
in both the simulator and TensorFlow's executor.
"""

import numpy as np

from tfplace.errors import ProblemError, shown
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.paths import descendants

# (ready time, position): rule 2 (device) of docs/simulation.md
ARRIVAL = "arrival"
RANK = "rank"  # By `ranks` alone.
ORDERS = (ARRIVAL, RANK)
# Minimum relative gain of rank order; below it the control edges do not pay.
LEAST_GAIN = 0.03
_FIRST = -1  # Turn before microbatch 0.


def check_order(order: str, among: tuple[str, ...] = ORDERS) -> None:
  """Raises ProblemError unless an execution order is among the choices."""
  if not isinstance(order, str) or order not in among:
    raise ProblemError(
      f"order is {shown(order)}; it must be one of {', '.join(among)}"
    )


def resolved(order: str, graph: OpGraph) -> str:
  """Resolves "auto" for a whole step, which runs in order of arrival."""
  is_whole = graph.num_microbatches == 1
  return ARRIVAL if order == AUTO and is_whole else order


def order_to_json(order: str) -> dict[str, str]:
  """Returns the JSON entry of an order; empty for arrival, the default."""
  return {} if order == ARRIVAL else {"order": order}


def ranks(
  graph: OpGraph, upward_us: np.ndarray, position: np.ndarray | None = None
) -> np.ndarray:
  """Returns the static execution rank of each op, [num_ops] int64.

  Ops run by turn, then by decreasing upward rank (HEFT, Topcuoglu et al.,
  2002), then by position. Finishing a microbatch before the next one keeps few
  of them in memory, as in 1F1B (PipeDream, Narayanan et al., 2019).
  TensorFlow's executor can be held to such an order (TicTac, Hashemi et al.,
  2019).

  Args:
    upward_us: [num_ops] upward rank of each op in microseconds.
    position: [num_ops] position of each op if the ops have been renumbered;
      None means 0, 1, ...
  """
  if position is None:
    position = np.arange(graph.num_ops)
  order = np.lexsort((position, -upward_us, _turns(graph)))
  result = np.empty(graph.num_ops, np.int64)
  result[order] = np.arange(graph.num_ops)
  return result


def _turns(graph: OpGraph) -> np.ndarray:
  """Returns the turn of each op, [num_ops].

  First come shared ops that microbatches depend on, such as reads of variables,
  and ops that prepare the batch, because replicas on other devices may wait for
  them. Then each microbatch has its turn, and all other ops, such as the
  optimizer, come last.
  """
  microbatch = graph.microbatch
  leads_to = _any(graph, microbatch[graph.edge_dst] >= 0, backward=True)
  is_first = np.where(microbatch < 0, leads_to, _prepares(graph))
  turn = np.where(microbatch < 0, graph.num_microbatches, microbatch)
  return np.where(is_first, _FIRST, turn)


def _prepares(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] bool: ops of microbatches that prepare the fed batch.

  They take a microbatch's rows, cast them or derive no more bytes from them,
  without variables. Their constants are included.
  """
  is_own = graph.microbatch >= 0
  read_bytes = np.bincount(graph.edge_dst, graph.edge_bytes, graph.num_ops)
  grows = is_own & (read_bytes > 0) & (graph.op_output_bytes > read_bytes)
  # Casts may grow, from images in bytes for example.
  computes = grows & (np.array(graph.types) != "Cast")
  computes |= graph.persistent_bytes > 0
  free = is_own & ~computes & ~_any(graph, computes[graph.edge_src])
  is_fed = ~is_own[graph.edge_src] & (graph.edge_bytes > 0)
  of_batch = free & _any(graph, is_fed)
  leads_to = _any(graph, of_batch[graph.edge_dst], backward=True)
  return of_batch | (free & leads_to)


def _any(
  graph: OpGraph, edges: np.ndarray, backward: bool = False
) -> np.ndarray:
  """Returns [num_ops] bool: a path to (or from) the op has a marked edge."""
  src, dst = graph.edge_src, graph.edge_dst
  if backward:
    src, dst = dst, src
  start = np.zeros(graph.num_ops, bool)
  start[dst[edges]] = True
  return descendants(start, src, dst)
