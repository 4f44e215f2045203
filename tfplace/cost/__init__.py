"""What each op costs on each kind of device.

`op_graph` is resolved when first used, so that importing this package does
not import TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfplace.cost.profile import LinkFit, fit_link, with_measured_times

if TYPE_CHECKING:
  from tfplace.cost.analytical import op_graph

__all__ = ["LinkFit", "fit_link", "op_graph", "with_measured_times"]


def __getattr__(name: str) -> Any:
  if name == "op_graph":
    return importlib.import_module("tfplace.cost.analytical").op_graph
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
