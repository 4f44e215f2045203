"""Features of the recurrent policies (NumPy only).

Features of the RNN-based placer (Mirhoseini et al., 2017) and HDP (2018), with
bytes for shapes, and with device features, so that one policy serves any
cluster.
"""

import collections
import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from tfplace.graph.problem import Problem
from tfplace.learned import Tensor, features
from tfplace.learned.decisions import Decisions
from tfplace.learned.policy_format import PolicyInputs

VERSION = 2  # Incremented when policies must be retrained.
TYPES = 200  # HDP: number of most common types with their own embedding
OUTPUTS = 5  # number of outputs used by TensorFlow's hierarchical_controller
NEIGHBORS = 6  # HDP: maximum number of producers, and of consumers
# Scales sizes to about [0, 1]: log(1 + bytes) of half a gigabyte.
_LOG_BYTES = 20.0

SIGNATURE: dict[str, Tensor] = {
  "types": ((None, None), "float32"),
  "sizes": ((None, OUTPUTS), "float32"),
  "adjacency": ((None, 2 * NEIGHBORS), "float32"),
  "edge_src": ((None,), "int32"),
  "edge_dst": ((None,), "int32"),
  "device": ((None, features.DEVICE_FEATURES), "float32"),
  "allowed": ((None, None), "bool"),
}
# Arguments besides `SIGNATURE`: the groups of decisions, devices, and noise on
# the logits of devices.
GROUPING: dict[str, Tensor] = {"grouping": ((None, None), "int32")}
NOISE: dict[str, Tensor] = {"noise": ((None, None, None), "float32")}


@dataclasses.dataclass(frozen=True, eq=False)
class OpEmbedding(PolicyInputs):
  """Inputs of a recurrent policy for N decisions, D devices and E links.

  Attributes:
    types: [N, T + 1] float32 fraction of the ops of each type. The last column
      contains all types without their own embedding.
    sizes: [N, OUTPUTS] float32 log bytes of the largest outputs.
    adjacency: [N, 2 * NEIGHBORS] float32 (number + 1) / N of the producers,
      then of the consumers, with the most traffic; 0 pads.
    edge_src: [E] int32 sending decision.
    edge_dst: [E] int32 receiving decision.
    device: [D, features.DEVICE_FEATURES] float32.
    allowed: [N, D] bool.
  """

  types: np.ndarray
  sizes: np.ndarray
  adjacency: np.ndarray
  edge_src: np.ndarray
  edge_dst: np.ndarray
  device: np.ndarray
  allowed: np.ndarray


def commonest_types(
  problems: Iterable[Problem], number: int = TYPES
) -> tuple[str, ...]:
  """Returns the most common op types, in order; ties go by name."""
  counts = collections.Counter(
    name for problem in problems for name in problem.graph.types
  )
  ranked = sorted(counts, key=lambda name: (-counts[name], name))
  return tuple(ranked[:number])


def extract(decisions: Decisions, types: Sequence[str]) -> OpEmbedding:
  """Extracts the inputs of a problem; `types` have their own embedding."""
  seen = features.extract(decisions)
  graph, of = decisions.problem.graph, decisions.decision_of
  count = decisions.num_decisions
  number = {name: i for i, name in enumerate(types)}
  column = [number.get(name, len(types)) for name in graph.types]
  ops = np.zeros((count, len(types) + 1), np.float32)
  np.add.at(ops, (of, np.array(column, np.int64)), 1.0)
  owner = np.repeat(of, np.diff(graph.output_offsets))
  log_bytes = np.log1p(graph.output_bytes) / _LOG_BYTES
  src, dst, weight = seen.edge_src, seen.edge_dst, seen.edge[:, 0]
  largest = [
    _largest((count, NEIGHBORS), own, weight, (other + 1.0) / count, other)
    for own, other in ((dst, src), (src, dst))
  ]
  return OpEmbedding(
    types=ops / np.maximum(ops.sum(axis=1, keepdims=True), 1.0),
    sizes=_largest((count, OUTPUTS), owner, log_bytes, log_bytes),
    adjacency=np.concatenate(largest, axis=1),
    edge_src=src,
    edge_dst=dst,
    device=seen.device,
    allowed=seen.allowed,
  )


def _largest(
  shape: tuple[int, int],
  owner: np.ndarray,
  weight: np.ndarray,
  values: np.ndarray,
  *ties: np.ndarray,
) -> np.ndarray:
  """Returns [owners, number] values of the largest weights of each owner.

  They are in decreasing order and padded with 0; `ties` break ties.
  """
  order = np.lexsort((*ties, -weight, owner))
  row = owner[order]
  rank = np.arange(len(row)) - np.searchsorted(row, row)
  kept = rank < shape[1]
  result = np.zeros(shape, np.float32)
  result[row[kept], rank[kept]] = values[order][kept]
  return result
