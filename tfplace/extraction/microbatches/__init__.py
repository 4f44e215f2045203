"""Microbatched training steps that compute the same result as the whole step.

`microbatched_step` builds the step. Its configuration and the names of its ops
are in `core.microbatches`.
"""

from typing import Any

FUNCTION = "microbatch_step"  # Name of the traced graph that is copied.


def is_template(graph: Any) -> bool:
  """Returns whether microbatches copy the graph or a graph around it."""
  while graph is not None:
    if getattr(graph, "name", None) == FUNCTION:
      return True
    graph = getattr(graph, "outer_graph", None)
  return False
