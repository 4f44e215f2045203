"""Features of the recurrent policies (NumPy only).

Features of the RNN-based placer (Mirhoseini et al., 2017) and HDP (2018), with
bytes for shapes, and with device features, so that one policy serves any
cluster.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.core.problem import Problem
from tfplace.learned import Tensor
from tfplace.learned.decisions import Decisions
from tfplace.learned.encoder import features
from tfplace.learned.policy_format import PolicyInputs

VERSION = 1  # Incremented when policies must be retrained.
TYPES = 200  # HDP: number of most common types with their own embedding
OUTPUTS = 5  # number of outputs used by TensorFlow's hierarchical_controller
NEIGHBORS = 6  # HDP: maximum number of producers, and of consumers
# Scales sizes to about [0, 1]: log(1 + bytes) of half a gigabyte.
_LOG_BYTES = 20.0

# Arguments of exported functions besides `signature`: the groups of decisions,
# previous choices, and noise on the logits.
GROUPING: dict[str, Tensor] = {"grouping": ((None, None), "int32")}
CHOICES: dict[str, Tensor] = {"choices": ((None, None), "int32")}
NOISE: dict[str, Tensor] = {"noise": ((None, None, None), "float32")}


def signature(types: int) -> dict[str, Tensor]:
  """Describes `OpEmbedding.tensors()`, in order, for `types` op types."""
  return {
    "types": ((None, types + 1), "float32"),
    "sizes": ((None, OUTPUTS), "float32"),
    "adjacency": ((None, 2 * NEIGHBORS), "float32"),
    "edge_src": ((None,), "int32"),
    "edge_dst": ((None,), "int32"),
    "device": ((None, features.DEVICE_FEATURES), "float32"),
    "allowed": ((None, None), "bool"),
  }


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
  problems: Sequence[Problem], number: int = TYPES
) -> tuple[str, ...]:
  """Returns the most common op types, in order; ties go by name."""
  counts = collections.Counter[str]()
  for problem in problems:
    counts.update(problem.graph.types)
  ranked = sorted(counts, key=lambda name: (-counts[name], name))
  return tuple(ranked[:number])


def extract(decisions: Decisions, types: Sequence[str]) -> OpEmbedding:
  """Extracts the inputs of a problem; `types` have their own embedding."""
  seen = features.extract(decisions)
  links = seen.edge_src, seen.edge_dst, seen.edge[:, 0]
  return OpEmbedding(
    types=_types(decisions, types),
    sizes=_sizes(decisions),
    adjacency=_adjacency(decisions.num_decisions, *links),
    edge_src=seen.edge_src,
    edge_dst=seen.edge_dst,
    device=seen.device,
    allowed=seen.allowed,
  )


def fallback_devices(decisions: Decisions) -> np.ndarray:
  """Returns [N] int32 fastest device of each decision.

  A decision uses it if its group is on a device without a kernel for it, like
  TensorFlow's soft placement. Ties go to the first device.
  """
  time_us = np.where(decisions.allowed, decisions.time_us, np.inf)
  return time_us.argmin(axis=1).astype(np.int32)


def follow_groups(
  grouping: np.ndarray,
  devices: np.ndarray,
  allowed: np.ndarray,
  fallback: np.ndarray,
) -> np.ndarray:
  """Returns [B, N] int32 devices: those of the groups or the fallbacks.

  Args:
    grouping: [B, N] group of each decision.
    devices: [B, G] device of each group.
    allowed: [N, D] bool.
    fallback: [N] result of `fallback_devices`.
  """
  wanted = np.take_along_axis(devices, grouping, axis=1)
  runs = allowed[np.arange(len(fallback)), wanted]
  return np.where(runs, wanted, fallback).astype(np.int32)


def _types(decisions: Decisions, types: Sequence[str]) -> np.ndarray:
  number = {name: i for i, name in enumerate(types)}
  graph = decisions.problem.graph
  column = np.array(
    [number.get(name, len(types)) for name in graph.types], np.int64
  )
  counts = np.zeros((decisions.num_decisions, len(types) + 1), np.float32)
  np.add.at(counts, (decisions.decision_of, column), 1.0)
  return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)


def _sizes(decisions: Decisions) -> np.ndarray:
  graph = decisions.problem.graph
  outputs = np.diff(graph.output_offsets)
  owner = np.repeat(decisions.decision_of, outputs)
  order = np.lexsort((-graph.output_bytes, owner))
  row, rank = _ranked(owner[order])
  result = np.zeros((decisions.num_decisions, OUTPUTS), np.float32)
  kept = rank < OUTPUTS
  num_bytes = graph.output_bytes[order][kept]
  result[row[kept], rank[kept]] = np.log1p(num_bytes) / _LOG_BYTES
  return result


def _adjacency(
  count: int, src: np.ndarray, dst: np.ndarray, weight: np.ndarray
) -> np.ndarray:
  result = np.zeros((count, 2 * NEIGHBORS), np.float32)
  for own, other, first in ((dst, src, 0), (src, dst, NEIGHBORS)):
    order = np.lexsort((other, -weight, own))
    row, rank = _ranked(own[order])
    kept = rank < NEIGHBORS
    number = other[order][kept]
    result[row[kept], first + rank[kept]] = (number + 1.0) / count
  return result


def _ranked(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns sorted row numbers and the rank of each entry in its row."""
  first = np.searchsorted(rows, rows)
  return rows, np.arange(len(rows)) - first
