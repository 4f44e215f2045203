"""Step variants of a Keras model: microbatches, recomputation, XLA units."""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.variants.keras_step import trace_keras, trace_keras_file

__getattr__ = lazy.exporter(
  __name__,
  {
    name: f"{__name__}.keras_step"
    for name in ("trace_keras", "trace_keras_file")
  },
)
