"""The cost model of Grappler's estimator on described hardware.

No device and no run is needed. `estimate` times single ops, `calls` what
functions take that could not be inlined.
"""

from typing import Any

import numpy as np

from tfplace.core.protocols import OpCosts
from tfplace.cost import calls, estimate
from tfplace.cost.assemble import Step, by_op


class GrapplerCosts:
  """Estimates by `Device.extra["hardware"]`, or the default of the kind.

  An op that Grappler leaves out takes 0. Temporary bytes are what the body of a
  call holds at once; Grappler estimates none for other ops. Loops of unknown
  length count one iteration and are listed in `extra["unknown_trip_counts"]`.
  """

  name = "grappler"

  def op_costs(self, step: Step) -> OpCosts:
    """Times per kind, and temporary bytes of calls.

    Raises:
      ExtractionError: Grappler rejects the graph.
    """
    repeated = estimate.repeated_in(step.graph_def, step.tf_graph, step.outputs)
    times = estimate.times_us(
      step.graph_def, step.tf_graph, step.outputs, step.hardware, repeated
    )
    called = calls.CallCosts(step.graph_def, step.hardware).of_graph(
      step.tf_graph, repeated
    )
    time_us: dict[str, np.ndarray] = {}
    for kind, of_op in times.items():
      of_calls = {
        name: call.time_us[kind]
        for name, call in called.items()
        if kind in call.time_us
      }
      time_us[kind] = by_op(step.graph, {**of_op, **of_calls})
    temp_bytes = {name: call.temp_bytes for name, call in called.items()}
    guessed = [name for name, call in called.items() if not call.is_sure]
    extra: dict[str, Any] = {}
    if guessed:
      extra["unknown_trip_counts"] = guessed
    return OpCosts(time_us, by_op(step.graph, temp_bytes), extra)
