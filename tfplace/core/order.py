"""The order in which a device takes its ready ops: a part of a plan.

As ops arrive, which is what the formats mean by a placement without more, or by
a rank that each op has beforehand. A chain of control edges per device makes
the first of the second, in the simulator as in TensorFlow's executor.
"""

from typing import TYPE_CHECKING

import numpy as np

from tfplace.core.paths import longest_paths, upward_ranks
from tfplace.errors import ProblemError, shown

if TYPE_CHECKING:
  from tfplace.core.op_graph import OpGraph

ARRIVAL = "arrival"  # (ready time, position): rule 2 of the formats
RANK = "rank"  # by `ranks` alone
ORDERS = (ARRIVAL, RANK)
AUTO = "auto"  # to be chosen with the placement
# Share of the step time that rank must gain, or it is not worth its chains.
LEAST_GAIN = 0.03


def check_order(order: str, among: tuple[str, ...] = ORDERS) -> None:
  """Checks the name of an order.

  Raises:
    ProblemError: names the value and the choices.
  """
  if order not in among:
    raise ProblemError(
      f"order is {shown(order)}; it must be one of {', '.join(among)}"
    )


def order_to_json(order: str) -> dict[str, str]:
  """What files say of an order: of that of arrival, nothing."""
  return {} if order == ARRIVAL else {"order": order}


def ranks(
  graph: "OpGraph", op_us: np.ndarray, position: np.ndarray | None = None
) -> np.ndarray:
  """[num_ops] int64: each op's turn, the smaller the sooner.

  Of a split step, what all microbatches need comes first (reads of variables),
  then one microbatch after another, then what comes after all of them (the
  optimizer): what was begun is finished first, so that a pipeline holds few
  microbatches (1F1B of PipeDream, Narayanan et al., 2019). Within these, the
  longest way to the end of the step goes first, as in HEFT's list scheduling
  (upward rank, Topcuoglu et al., 2002), then the position. TensorFlow's
  executor can be held to such an order (TicTac, Hashemi et al., 2019).

  Args:
    graph: the step.
    op_us: [num_ops] microseconds that an op counts for.
    position: [num_ops] each op's position, where the ops have been renumbered;
      None is 0, 1, ...
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
