"""Costs of the ops of a step, and the cost model of Grappler's estimates.

`estimate` times single ops. `calls` adds up the functions that could not be
inlined.
"""

import functools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.cost import calls, op_classes
from tfplace.cost.assemble import Step, by_op
from tfplace.cost.estimate import OpTimer, class_times
from tfplace.graph.protocols import OpCosts

_logger = logging.getLogger("tfplace")
_LISTED = 3  # rejected ops in a warning


class GrapplerCosts:
  """Cost model of Grappler's estimates; see `estimated_costs`.

  The hardware is `Device.extra["hardware"]`, or the default of the kind. Ops
  that Grappler omits take no time.
  """

  name = "grappler"

  def op_costs(self, step: Step) -> OpCosts:
    """See `CostModel` and `estimated_costs`."""
    return estimated_costs(step, functools.partial(class_times, step.hardware))


def estimated_costs(step: Step, op_times: OpTimer) -> OpCosts:
  """Estimates the costs of a step's ops; a call costs what its body does.

  Only calls have temporary bytes: the most that their body holds at once. Loops
  of unknown length count one iteration and are listed in
  `extra["unknown_trip_counts"]`. An op that Grappler rejects takes its bytes
  over the memory bandwidth. Such ops, and calls of such ops, are listed in
  `extra["rejected_by_grappler"]` and in a warning.

  Args:
    step: a step without costs.

  Raises:
    ExtractionError: TensorFlow rejects a function.
  """
  graph = step.graph_def, step.tf_graph, step.outputs
  repeated = op_classes.repeated_ops(*graph)
  of_ops = op_times(op_classes.OpClasses(*graph, repeated))
  called = calls.CallCosts(step.graph_def, op_times).of_graph(
    step.tf_graph, repeated
  )
  time_us: dict[str, np.ndarray] = {}
  peak_us: dict[str, np.ndarray] = {}
  for key, of_op in of_ops.time_us.items():
    of_calls = {
      name: call.time_us[key]
      for name, call in called.items()
      if key in call.time_us
    }
    values = by_op(step.graph, {**of_op, **of_calls})
    if isinstance(key, str):
      time_us[key] = values
    else:
      peak_us[key.kind] = values
  temp_bytes = {name: call.temp_bytes for name, call in called.items()}
  guessed = [name for name, call in called.items() if not call.is_exact]
  extra: dict[str, Any] = {}
  if guessed:
    extra["unknown_trip_counts"] = guessed
  rejected = {name: [name] for name in of_ops.rejected}
  rejected |= {
    name: list(call.rejected) for name, call in called.items() if call.rejected
  }
  if rejected:
    extra["rejected_by_grappler"] = list(rejected)
    reasons = {**of_ops.rejected, **calls.rejected_in(called.values())}
    _warn(step, rejected, reasons)
  return OpCosts(time_us, by_op(step.graph, temp_bytes), extra, peak_us)


def _warn(
  step: Step, rejected: Mapping[str, list[str]], reasons: Mapping[str, str]
) -> None:
  """Warns of rejected ops: op of the step -> itself or the ops it calls."""
  layers = step.graph.layer_paths
  shown = []
  for name, inner in rejected.items():
    layer = layers[step.graph.index[name]]
    of_layer = f" of layer {layer!r}" if layer else ""
    called = "" if inner == [name] else f" called by {name!r}"
    shown += [f"{op!r}{called}{of_layer}" for op in inner]
  more = len(shown) - _LISTED
  _logger.warning(
    "model %r: TensorFlow's estimator rejects %s%s, so that the time of such an"
    " op is taken to be its bytes over the memory bandwidth (%s)",
    step.graph.name,
    ", ".join(shown[:_LISTED]),
    f" and {more} other ops" if more > 0 else "",
    next(iter(reasons.values())),
  )
