"""Phases of the ops of a training step: forward, backward, update, shared.

Phases follow from edges where possible, and otherwise from names: gradient ops
are in TensorFlow's gradient scope.
"""

import numpy as np

from tfplace.graph.microbatches import name_in_whole
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.op_names import is_gradient
from tfplace.graph.paths import descendants

FORWARD, BACKWARD, UPDATE, SHARED = range(4)
NAMES = ("forward", "backward", "update", "shared")


def is_microbatched(graph: OpGraph) -> bool:
  """Returns whether the step has several microbatches."""
  return bool((graph.microbatch > 0).any())


def phases(graph: OpGraph) -> np.ndarray:
  """Returns the [num_ops] int64 phases of a microbatched step.

  FORWARD and BACKWARD ops belong to one microbatch. Of the shared ops, UPDATE
  ops have predecessors but no successors in microbatches: additions of
  gradients, updates of metrics and variables. SHARED are all others, such as
  reads of variables.
  """
  inside, src, dst = graph.microbatch >= 0, graph.edge_src, graph.edge_dst
  within = inside[src] & (graph.microbatch[src] == graph.microbatch[dst])
  gradients = inside & _gradients(graph)
  backward = descendants(gradients, src[within], dst[within])
  after, before = descendants(inside, src, dst), descendants(inside, dst, src)
  return np.select(
    [backward, inside, after & ~before], [BACKWARD, FORWARD, UPDATE], SHARED
  )


def is_forward(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] bool: forward ops, or all ops without gradients."""
  if is_microbatched(graph):
    return phases(graph) == FORWARD
  src, dst = graph.edge_src, graph.edge_dst
  gradients = _gradients(graph)
  if not gradients.any():
    return ~gradients
  # Arithmetic on optimizer slots neither follows nor precedes gradients.
  return descendants(gradients, dst, src) & ~descendants(gradients, src, dst)


def updates(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] bool: ops whose results reach nothing but variables.

  They update weights, slots of the optimizer and metrics. A step without
  gradients has none, and neither forward nor backward ops count.
  """
  gradients = _gradients(graph)
  if not gradients.any():
    return gradients
  src, dst = graph.edge_src, graph.edge_dst
  held = variable_ops(graph)
  return ~descendants(gradients, dst, src) & descendants(held, dst, src)


def variable_ops(graph: OpGraph) -> np.ndarray:
  """Returns [num_ops] bool: variables, and the ops that must sit with them."""
  holds = graph.persistent_bytes > 0
  groups = graph.colocation[holds & (graph.colocation >= 0)]
  return holds | np.isin(graph.colocation, groups)


def _gradients(graph: OpGraph) -> np.ndarray:
  is_backward = (is_gradient(name_in_whole(name)) for name in graph.names)
  return np.fromiter(is_backward, bool, graph.num_ops)
