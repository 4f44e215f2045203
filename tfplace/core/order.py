"""Execution order: the order in which a device takes its ready ops.

Devices take ops by arrival, the default of placement files, or by a rank that
is fixed in advance. A chain of control edges per device enforces a rank order
in both the simulator and TensorFlow's executor.
"""

from typing import TYPE_CHECKING

import numpy as np

from tfplace.core.paths import longest_paths, upward_ranks
from tfplace.errors import ProblemError, shown

if TYPE_CHECKING:
  from tfplace.core.op_graph import OpGraph

# (ready time, position): rule 2 (device) of docs/simulation.md
ARRIVAL = "arrival"
RANK = "rank"  # By `ranks` alone.
ORDERS = (ARRIVAL, RANK)
AUTO = "auto"  # Chosen together with the placement.
# Minimum relative gain of rank order; below it the control edges do not pay.
LEAST_GAIN = 0.03


def check_order(order: str, among: tuple[str, ...] = ORDERS) -> None:
  """Raises ProblemError unless an execution order is among the choices."""
  if order not in among:
    raise ProblemError(
      f"order is {shown(order)}; it must be one of {', '.join(among)}"
    )


def order_to_json(order: str) -> dict[str, str]:
  """Returns the JSON entry of an order; empty for arrival, the default."""
  return {} if order == ARRIVAL else {"order": order}


def ranks(
  graph: "OpGraph", op_us: np.ndarray, position: np.ndarray | None = None
) -> np.ndarray:
  """Returns the static execution rank of each op, [num_ops] int64.

  Ops run by stage, then by decreasing upward rank (HEFT, Topcuoglu et al.,
  2002), then by position. The stages of a microbatched step are the ops that
  microbatches depend on (reads of variables), each microbatch in turn, and all
  other ops (the optimizer). Finishing a microbatch before the next one keeps
  few of them in memory, as in 1F1B (PipeDream, Narayanan et al., 2019).
  TensorFlow's executor can be held to such an order (TicTac, Hashemi et al.,
  2019).

  Args:
    op_us: [num_ops] weight of each op in microseconds.
    position: [num_ops] position of each op if the ops have been renumbered;
      None means 0, 1, ...
  """
  if position is None:
    position = np.arange(graph.num_ops)
  microbatch = graph.microbatch
  leads_to = longest_paths(
    graph, (microbatch[graph.edge_dst] >= 0).astype(float), backward=True
  )
  after_all = graph.num_microbatches
  turn = np.where(leads_to > 0, -1, after_all)
  turn = np.where(microbatch >= 0, microbatch, turn)
  longest_us = upward_ranks(graph, op_us)
  result = np.empty(graph.num_ops, np.int64)
  result[np.lexsort((position, -longest_us, turn))] = np.arange(graph.num_ops)
  return result
