"""Recomputation in a training step under construction.

The rewrite happens in the graph that is being traced, so the step that is
planned and the step that runs are the same.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfplace.core.microbatches import MicrobatchConfig
from tfplace.extraction.activations.dataflow import Dataflow
from tfplace.extraction.activations.recompute import recompute
from tfplace.extraction.activations.segments import find_segments


@contextlib.contextmanager
def applied(model: Any, config: MicrobatchConfig) -> Iterator[None]:
  """Rewrites the training step that is traced inside the context.

  Args:
    model: the Keras model of the step.
    config: what the step recomputes; its count is ignored.

  Raises:
    ExtractionError: a name of the config matches no layer.
  """
  if config.recompute.is_none:
    yield
    return
  from tfplace.extraction.layers import LayerRecorder

  graph = tf.compat.v1.get_default_graph()
  recorder = LayerRecorder(graph, model)
  with graph.device(recorder):
    yield
  flow = Dataflow(graph)
  segments = find_segments(flow, config.recompute, recorder.layers, model)
  recompute(graph, flow, segments)


def rewritten(
  model: Any, config: MicrobatchConfig, step: Callable[[Any], Any]
) -> Callable[[Any], Any]:
  """Returns a rewritten training step; the arguments are those of `applied`."""

  def rewritten_step(data: Any) -> Any:
    with applied(model, config):
      return step(data)

  return rewritten_step
