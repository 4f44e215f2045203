"""What each op costs on each kind of device.

`op_graph` is resolved when first used, so that importing this package does
not import TensorFlow.
"""

from typing import TYPE_CHECKING

from tfplace import lazy
from tfplace.cost.profile import LinkFit, fit_link, with_measured_times

if TYPE_CHECKING:
  from tfplace.cost.analytical import op_graph

__all__ = ["LinkFit", "fit_link", "op_graph", "with_measured_times"]

__getattr__ = lazy.exporter(__name__, {"op_graph": "tfplace.cost.analytical"})
