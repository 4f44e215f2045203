"""From TensorFlow models to flat GraphDefs. The only TensorFlow in `graph`.

Names are resolved when first used, so that importing this package does not
import TensorFlow.
"""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.graph.extract.functions import trace_function
  from tfplace.graph.extract.graph_file import trace_graph_def
  from tfplace.graph.extract.keras_step import trace_keras, trace_keras_file
  from tfplace.graph.extract.saved_model import trace_saved_model
  from tfplace.graph.extract.session import (
    feed_values,
    run_steps,
    with_initializers,
  )
  from tfplace.graph.extract.structure import Skeleton, skeleton
  from tfplace.graph.extract.traced import FeedSpec, TracedStep, VariableSpec

_MODULES = {
  "FeedSpec": "traced",
  "Skeleton": "structure",
  "TracedStep": "traced",
  "VariableSpec": "traced",
  "feed_values": "session",
  "run_steps": "session",
  "skeleton": "structure",
  "trace_function": "functions",
  "trace_graph_def": "graph_file",
  "trace_keras": "keras_step",
  "trace_keras_file": "keras_step",
  "trace_saved_model": "saved_model",
  "with_initializers": "session",
}


__getattr__ = lazy.exporter(
  __name__, {name: f"{__name__}.{home}" for name, home in _MODULES.items()}
)
