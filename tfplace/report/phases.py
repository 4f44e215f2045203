"""What each op of a training step is for: the forward pass, the backward pass,
the update; in a split step, of one microbatch or of all.

By edges where they tell, by names where only those do: what computes a gradient
is in TensorFlow's scope of gradients.
"""

import re

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from tfplace.core.op_graph import OpGraph

FORWARD, BACKWARD, UPDATE, SHARED = range(4)
NAMES = ("forward", "backward", "update", "shared")
_SCOPES = re.compile(
  r"(?:microbatch_\d+/)?((?:gradient_tape|gradients|Gradients)/)?"
)


def is_gradient(name: str) -> bool:
  """Whether an op computes a gradient, by its name."""
  found = _SCOPES.match(name)
  return found is not None and found[1] is not None


def forward_name(name: str) -> str:
  """`microbatch_1/gradient_tape/net/dense/MatMul` -> `net/dense/MatMul`."""
  return _SCOPES.sub("", name, count=1)


def is_split(graph: OpGraph) -> bool:
  """Whether the step is one of several microbatches."""
  return bool((graph.microbatch > 0).any())


def phases(graph: OpGraph) -> np.ndarray:
  """[num_ops] int64: the phase of each op of a split step.

  FORWARD or BACKWARD of one microbatch. Of what all microbatches share, UPDATE
  is what some of their ops lead to and none follows: gradients are added,
  metrics and variables updated; SHARED is the rest, such as reads of variables.
  """
  own, src, dst = graph.microbatch >= 0, graph.edge_src, graph.edge_dst
  within = own[src] & (graph.microbatch[src] == graph.microbatch[dst])
  gradients = own & _gradients(graph)
  backward = _reached(gradients, src[within], dst[within])
  after, before = _reached(own, src, dst), _reached(own, dst, src)
  return np.select(
    [backward, own, after & ~before], [BACKWARD, FORWARD, UPDATE], SHARED
  )


def is_forward(graph: OpGraph) -> np.ndarray:
  """[num_ops] bool: in the forward pass; all ops where nothing is learned."""
  if is_split(graph):
    return phases(graph) == FORWARD
  src, dst = graph.edge_src, graph.edge_dst
  gradients = _gradients(graph)
  if not gradients.any():
    return ~gradients
  # The arithmetic of slots comes after no gradient, but leads to none, either.
  return _reached(gradients, dst, src) & ~_reached(gradients, src, dst)


def _gradients(graph: OpGraph) -> np.ndarray:
  return np.fromiter(map(is_gradient, graph.names), bool, graph.num_ops)


def _reached(start: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
  """[num_ops] bool: in `start` [num_ops] bool, or at an edge's end after it."""
  count = len(start)
  begins = np.flatnonzero(start)
  rows = np.concatenate((src, np.full(len(begins), count)))
  columns = np.concatenate((dst, begins))
  edges = scipy.sparse.coo_matrix(
    (np.ones(len(rows), bool), (rows, columns)), (count + 1, count + 1)
  ).tocsr()
  found = np.zeros(count + 1, bool)
  found[
    csgraph.breadth_first_order(edges, count, return_predecessors=False)
  ] = True
  return found[:count]
