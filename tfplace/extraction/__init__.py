"""Traces TensorFlow models into flat GraphDefs and extracts their structure."""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.extraction.functions import trace_function, trace_saved_model
  from tfplace.extraction.graph_def import trace_graph_def
  from tfplace.extraction.structure import Skeleton, skeleton
  from tfplace.extraction.traced import (
    FeedSpec,
    TracedStep,
    VariableSpec,
    feed_values,
    with_initializers,
  )

_MODULES = {
  "functions": ("trace_function", "trace_saved_model"),
  "graph_def": ("trace_graph_def",),
  "structure": ("Skeleton", "skeleton"),
  "traced": (
    *("FeedSpec", "TracedStep", "VariableSpec"),
    *("feed_values", "with_initializers"),
  ),
}

__getattr__ = lazy.exporter(
  __name__,
  {n: f"{__name__}.{home}" for home, names in _MODULES.items() for n in names},
)
