"""What the recurrent policies see of a problem: NumPy arrays, no TensorFlow.

Types, output sizes and neighbours of ops, as the RNN-based placer (Mirhoseini
et al. 2017) and the hierarchical one (HDP, Mirhoseini et al. 2018) have them.
An op here is a decision of `tfplace.learned.decisions`: a co-location group,
or several of them. Graphs of tfplace know the bytes of outputs, not their
shapes. Beside the papers' features stand those of the devices, so that one
policy serves any cluster.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.core.problem import Problem
from tfplace.learned import Tensor
from tfplace.learned.decisions import Decisions
from tfplace.learned.exported import PolicyInputs
from tfplace.learned.gdp import features

VERSION = 1  # changes whenever a policy must be trained again
TYPES = 200  # HDP: the commonest types have an embedding of their own
OUTPUTS = 5  # TensorFlow's hierarchical_controller looks at so many outputs
NEIGHBOURS = 6  # HDP: at most so many producers, and so many consumers
_LOG_BYTES = 20.0  # log(1 + bytes) of half a gigabyte: sizes are about 0 to 1

# Arguments of the policies' functions, besides `signature`: groups of
# decisions, choices so far, and noise on the logits of what is to be drawn.
GROUPING: dict[str, Tensor] = {"grouping": ((None, None), "int32")}
CHOICES: dict[str, Tensor] = {"choices": ((None, None), "int32")}
NOISE: dict[str, Tensor] = {"noise": ((None, None, None), "float32")}


def signature(types: int) -> dict[str, Tensor]:
  """`OpEmbedding.tensors()`, in its order, for any problem.

  Args:
    types: number of op types with an embedding of their own.
  """
  return {
    "types": ((None, types + 1), "float32"),
    "sizes": ((None, OUTPUTS), "float32"),
    "adjacency": ((None, 2 * NEIGHBOURS), "float32"),
    "edge_src": ((None,), "int32"),
    "edge_dst": ((None,), "int32"),
    "device": ((None, features.DEVICE_FEATURES), "float32"),
    "allowed": ((None, None), "bool"),
  }


@dataclasses.dataclass(frozen=True, eq=False)
class OpEmbedding(PolicyInputs):
  """One problem as a recurrent policy sees it. N decisions, D devices, E links.

  Attributes:
    types: [N, T + 1] float32, the share of each type among the decision's ops;
      the last is that of all types without an embedding of their own.
    sizes: [N, OUTPUTS] float32, log of the bytes of the largest outputs.
    adjacency: [N, 2 * NEIGHBOURS] float32: (number + 1) / N of the producers,
      then of the consumers, with which it exchanges most; 0 where none.
    edge_src: [E] int32 decision that sends.
    edge_dst: [E] int32 decision that receives.
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
  """The types with the most ops, most first; ties by name."""
  counts = collections.Counter[str]()
  for problem in problems:
    counts.update(problem.graph.types)
  ranked = sorted(counts, key=lambda name: (-counts[name], name))
  return tuple(ranked[:number])


def extract(decisions: Decisions, types: Sequence[str]) -> OpEmbedding:
  """The embedding of a problem's decisions.

  Args:
    decisions: the problem and its units of decision.
    types: T types with an embedding of their own.
  """
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
  """[N] int32: each decision's fastest device, the first of several.

  Where a decision follows a group to a device without a kernel for it, it goes
  here instead, as TensorFlow's soft placement does.
  """
  time_us = np.where(decisions.allowed, decisions.time_us, np.inf)
  return time_us.argmin(axis=1).astype(np.int32)


def follow_groups(
  grouping: np.ndarray,
  devices: np.ndarray,
  allowed: np.ndarray,
  fallback: np.ndarray,
) -> np.ndarray:
  """[B, N] int32 device of each decision: its group's, or its fallback.

  Args:
    grouping: [B, N] group of each decision.
    devices: [B, G] device of each group.
    allowed: [N, D] bool.
    fallback: [N] from `fallback_devices`.
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
  result = np.zeros((count, 2 * NEIGHBOURS), np.float32)
  for own, other, first in ((dst, src, 0), (src, dst, NEIGHBOURS)):
    order = np.lexsort((other, -weight, own))
    row, rank = _ranked(own[order])
    kept = rank < NEIGHBOURS
    number = other[order][kept]
    result[row[kept], first + rank[kept]] = (number + 1.0) / count
  return result


def _ranked(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Sorted row numbers, and each entry's rank within its row."""
  first = np.searchsorted(rows, rows)
  return rows, np.arange(len(rows)) - first
