"""Runs traced steps in plain local sessions."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfplace.extraction.traced import TracedStep, with_initializers


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
