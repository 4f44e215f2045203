"""From TensorFlow models to flat GraphDefs, with the structure of an op graph.

Names are resolved when first used, so that importing this package does not
import TensorFlow.
"""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.extraction.graph_def import trace_graph_def
  from tfplace.extraction.inlining.functions import trace_function
  from tfplace.extraction.keras.step import trace_keras, trace_keras_file
  from tfplace.extraction.saved_model import trace_saved_model
  from tfplace.extraction.session import (
    feed_values,
    run_steps,
    with_initializers,
  )
  from tfplace.extraction.structure import Skeleton, skeleton
  from tfplace.extraction.traced import FeedSpec, TracedStep, VariableSpec

_MODULES = {
  "FeedSpec": "traced",
  "Skeleton": "structure",
  "TracedStep": "traced",
  "VariableSpec": "traced",
  "feed_values": "session",
  "run_steps": "session",
  "skeleton": "structure",
  "trace_function": "inlining.functions",
  "trace_graph_def": "graph_def",
  "trace_keras": "keras.step",
  "trace_keras_file": "keras.step",
  "trace_saved_model": "saved_model",
  "with_initializers": "session",
}


__getattr__ = lazy.exporter(
  __name__, {name: f"{__name__}.{home}" for name, home in _MODULES.items()}
)
