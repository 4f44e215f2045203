"""Cost models: the time of each op on each kind of device.

`op_graph` and `Step` are imported on first use, because they need TensorFlow.
"""

from typing import TYPE_CHECKING

from tfplace import lazy
from tfplace.cost.measured_costs import with_measured_times
from tfplace.cost.registry import COST_MODELS, get_cost_model

if TYPE_CHECKING:
  from tfplace.cost.assemble import Step, op_graph

__all__ = [
  "COST_MODELS",
  "Step",
  "get_cost_model",
  "op_graph",
  "with_measured_times",
]

__getattr__ = lazy.exporter(
  __name__,
  dict.fromkeys(("Step", "op_graph"), "tfplace.cost.assemble"),
)
