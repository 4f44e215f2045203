"""Traced steps of functions, and their runs in plain local sessions."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfplace.extraction.traced import TracedStep, with_initializers


def step_of(function, side: int) -> TracedStep:
  """A function of one [side, side] matrix, its control flow not inlined."""
  spec = tf.TensorSpec([side, side], name="x")
  concrete = tf.function(function).get_concrete_function(spec)
  graph_def = concrete.graph.as_graph_def()
  fetch = concrete.outputs[0].name
  return TracedStep("step", graph_def, {}, (fetch,), (), {}, False)


def run_steps(
  traced: TracedStep, feeds: Sequence[Mapping[str, np.ndarray]]
) -> list[list[np.ndarray]]:
  """Runs one step per mapping of `feeds` and returns the fetches of each."""
  prepared = with_initializers(traced)
  with tf.Graph().as_default() as graph:
    tf.import_graph_def(prepared.graph_def, name="")
    with tf.compat.v1.Session(graph=graph) as session:
      session.run(list(prepared.assignments), dict(prepared.feeds))
      run = [list(traced.fetches), list(traced.targets)]
      return [session.run(run, dict(feed))[0] for feed in feeds]
