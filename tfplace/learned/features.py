"""Features of graphs and clusters (scaled NumPy arrays).

All numbers are relative to graph and cluster, so one policy serves any. Op
type, output size and adjacency are GDP's (arXiv 1910.01578). The axes of op
names tell unrolled steps apart.
"""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from tfplace.graph.op_names import UNKNOWN
from tfplace.graph.problem import Problem
from tfplace.learned import Tensor
from tfplace.learned.decisions import Decisions
from tfplace.learned.policy_format import PolicyInputs

VERSION = 1  # Incremented when policies must be retrained.
TYPE_VOCABULARY = 512  # buckets of op types, by a stable hash of the name
NODE_FEATURES = 16  # without those of axes
EDGE_FEATURES = 3
RANKS = 8  # number of ranks that distinguish devices of one kind
DEVICE_FEATURES = 9 + RANKS
# Without those of axes. The last three are always 0; policies of this version
# expect them.
PAIR_FEATURES = 9
PER_NODE = 2  # features per axis and decision
PER_PAIR = 3  # features per axis and decision-device pair


def signature(axes: int) -> dict[str, Tensor]:
  """Describes `Features.tensors()`, in order, for a number of axes."""
  return {
    "type_id": ((None,), "int32"),
    "node": ((None, NODE_FEATURES + PER_NODE * axes), "float32"),
    "edge_src": ((None,), "int32"),
    "edge_dst": ((None,), "int32"),
    "edge": ((None, EDGE_FEATURES), "float32"),
    "device": ((None, DEVICE_FEATURES), "float32"),
    "pair": ((None, None, PAIR_FEATURES + PER_PAIR * axes), "float32"),
    "allowed": ((None, None), "bool"),
  }


@dataclasses.dataclass(frozen=True, eq=False)
class Features(PolicyInputs):
  """Inputs of a policy for N decisions, D devices and E links.

  Attributes:
    type_id: [N] int32 in [0, TYPE_VOCABULARY), type of the decision's longest
      op.
    node: [N, NODE_FEATURES + 2 * axes] float32.
    edge_src: [E] int32 sending decision, never equal to `edge_dst`.
    edge_dst: [E] int32 receiving decision.
    edge: [E, EDGE_FEATURES] float32.
    device: [D, DEVICE_FEATURES] float32.
    pair: [N, D, PAIR_FEATURES + 3 * axes] float32 decision-device pairs.
    allowed: [N, D] bool.
  """

  type_id: np.ndarray
  node: np.ndarray
  edge_src: np.ndarray
  edge_dst: np.ndarray
  edge: np.ndarray
  device: np.ndarray
  pair: np.ndarray
  allowed: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Sums:
  """Sums over the ops of each decision, [N]; `on_us` is [N, D]."""

  time_us: np.ndarray
  on_us: np.ndarray
  out_bytes: np.ndarray
  persistent: np.ndarray
  temp: np.ndarray
  ops: np.ndarray


def extract(decisions: Decisions, axes: int = 0) -> Features:
  """Extracts the features of a problem, including those of `axes` axes."""
  problem = decisions.problem
  sums = _sum(decisions)
  edge_src, edge_dst, num_bytes, is_data = _edges(decisions)
  scale = _Scale(problem, sums, num_bytes[is_data])
  share = np.cumsum(sums.time_us) - 0.5 * sums.time_us
  degrees = [
    np.bincount(ends, minlength=decisions.num_decisions)
    for ends in (edge_dst, edge_src)
  ]
  node = _node(decisions, sums, scale, degrees=degrees, share=share)
  pair = _pair(decisions, sums, share)
  if axes:
    along = decisions.axes(axes)
    more = _axes_of_pairs(along, *_kind_ranks(problem))
    more[~decisions.allowed] = 0.0
    pair = np.concatenate((pair, more), axis=-1)
    node = np.concatenate((node, _axes_of_nodes(along)), axis=1)
  return Features(
    type_id=_type_ids(decisions),
    node=node.astype(np.float32),
    edge_src=edge_src,
    edge_dst=edge_dst,
    edge=_stack(
      np.log1p(num_bytes / scale.mean_bytes),
      np.log1p(scale.transfer_us(num_bytes) / scale.mean_us),
      is_data,
    ),
    device=_device(problem, sums, scale, decisions.allowed),
    pair=pair,
    allowed=decisions.allowed,
  )


class _Scale:
  """Units that make the features of different problems comparable."""

  def __init__(
    self, problem: Problem, sums: _Sums, data_bytes: np.ndarray
  ) -> None:
    cluster = problem.cluster
    count = max(1, len(sums.time_us))
    self.mean_us = max(float(sums.time_us.sum()) / count, 1e-9)
    self.mean_bytes = max(float(data_bytes.mean()) if len(data_bytes) else 0, 1)
    linked = cluster.channel >= 0
    some = bool(linked.any())
    self.latency_us = float(cluster.latency_us[linked].mean()) if some else 0.0
    self.bandwidth = (
      float(np.median(cluster.bandwidth[linked])) if some else 1e9
    )
    self.need_bytes = max(
      float(sums.persistent.sum() + sums.out_bytes.sum()), 1.0
    )

  def transfer_us(self, num_bytes: np.ndarray) -> np.ndarray:
    return num_bytes / self.bandwidth + self.latency_us


def _sum(decisions: Decisions) -> _Sums:
  problem, of = decisions.problem, decisions.decision_of
  count = decisions.num_decisions

  def total(values: np.ndarray) -> np.ndarray:
    return np.bincount(of, weights=values, minlength=count)

  graph, on_us = problem.graph, decisions.time_us
  return _Sums(
    time_us=np.where(decisions.allowed, on_us, np.inf).min(axis=1, initial=1e18)
    if count
    else np.zeros(0),
    on_us=on_us,
    out_bytes=total(graph.op_output_bytes),
    persistent=total(graph.persistent_bytes),
    temp=total(graph.temp_bytes),
    ops=total(np.ones(graph.num_ops)),
  )


def _edges(
  decisions: Decisions,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
  """Returns src, dst and bytes of links, and a flag for data links."""
  graph, of = decisions.problem.graph, decisions.decision_of
  src, dst = of[graph.edge_src].astype(np.int64), of[graph.edge_dst]
  apart = src != dst
  key = src[apart] * max(1, decisions.num_decisions) + dst[apart]
  unique, inverse = np.unique(key, return_inverse=True)
  inverse = inverse.reshape(-1)
  num_bytes = np.bincount(
    inverse, weights=graph.edge_bytes[apart], minlength=len(unique)
  )
  data = np.bincount(
    inverse, weights=graph.edge_output[apart] >= 0, minlength=len(unique)
  )
  count = max(1, decisions.num_decisions)
  return (
    (unique // count).astype(np.int32),
    (unique % count).astype(np.int32),
    num_bytes,
    data > 0,
  )


def _type_ids(decisions: Decisions) -> np.ndarray:
  problem = decisions.problem
  types = problem.graph.types
  hashes = {t: zlib.crc32(t.encode()) % TYPE_VOCABULARY for t in set(types)}
  ids = np.array([hashes[t] for t in types], np.int32)
  order = np.lexsort((-problem.fastest_us, decisions.decision_of))
  first = np.searchsorted(
    decisions.decision_of[order], np.arange(decisions.num_decisions)
  )
  return ids[order[first]]


def _node(
  decisions: Decisions,
  sums: _Sums,
  scale: _Scale,
  *,
  degrees: Sequence[np.ndarray],
  share: np.ndarray,
) -> np.ndarray:
  problem, count = decisions.problem, decisions.num_decisions
  # HEFT ranks without communication.
  upward, downward = problem.upward_ranks_us, problem.earliest_start_us
  longest = max(float(upward.max(initial=0.0)), 1e-9)
  up, down = np.zeros(count), np.full(count, np.inf)
  np.maximum.at(up, decisions.decision_of, upward / longest)
  np.minimum.at(down, decisions.decision_of, downward / longest)
  per = max(1, count)
  total_us = max(float(sums.time_us.sum()), 1e-9)
  memory = sums.persistent + sums.out_bytes
  return _stack(
    np.log1p(sums.time_us / scale.mean_us),
    np.log1p(100 * sums.time_us / total_us),
    np.log1p(sums.out_bytes / scale.mean_bytes),
    np.log1p(scale.transfer_us(sums.out_bytes) / scale.mean_us),
    np.log1p(per * sums.persistent / scale.need_bytes),
    np.log1p(per * sums.temp / scale.need_bytes),
    np.clip(memory / max(problem.cluster.memory_bytes.min(), 1.0), 0, 2),
    *map(np.log1p, degrees),
    np.arange(count) / per,
    up,
    down,
    1.0 - up - down,
    np.log1p(sums.ops),
    share / total_us,
    decisions.allowed.mean(axis=1),
  )


def _kind_ranks(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
  """Returns [D] rank of each device within its kind, [D] size of the kind."""
  kinds = [d.kind for d in problem.cluster.devices]
  rank = np.array([kinds[:i].count(k) for i, k in enumerate(kinds)], float)
  return rank, np.array([kinds.count(k) for k in kinds], float)


def _device(
  problem: Problem, sums: _Sums, scale: _Scale, allowed: np.ndarray
) -> np.ndarray:
  cluster = problem.cluster
  rank, number = _kind_ranks(problem)
  on = np.where(allowed, sums.on_us, 0.0).sum(axis=0)
  best = np.where(allowed, sums.time_us[:, None], 0.0).sum(axis=0)
  linked = cluster.channel >= 0
  links = np.maximum(linked.sum(axis=1), 1)
  latency = np.where(linked, cluster.latency_us, 0.0).sum(axis=1) / links
  rate = np.where(linked, cluster.bandwidth, 0.0).sum(axis=1) / links
  memory = np.minimum(cluster.memory_bytes / scale.need_bytes, 1e3)
  return _stack(
    (rank + 0.5) / number,
    1.0 / number,
    np.clip(np.log((on + 1e-9) / (best + 1e-9)), 0, 5),
    allowed.mean(axis=0) if len(allowed) else np.zeros(len(rank)),
    np.clip(np.log(memory + 1e-9), -3, 3),
    np.log1p(cluster.op_overhead_us / scale.mean_us),
    np.log1p(latency / scale.mean_us),
    np.log1p(scale.mean_bytes / np.maximum(rate, 1e-9) / scale.mean_us).clip(
      0, 10
    ),
    [d.is_cpu for d in cluster.devices],
    *(rank % RANKS == np.arange(RANKS)[:, None]),
  )


def _pair(decisions: Decisions, sums: _Sums, share: np.ndarray) -> np.ndarray:
  problem = decisions.problem
  rank, number = _kind_ranks(problem)
  memory = sums.persistent + sums.out_bytes
  held = np.cumsum(memory) - 0.5 * memory
  slower = (sums.on_us + 1e-9) / (sums.time_us[:, None] + 1e-9)
  pair = np.zeros((*decisions.allowed.shape, PAIR_FEATURES), np.float32)
  pair[..., 0] = np.clip(np.log(slower), 0, 5)
  for at, cumulative in ((1, share), (3, held)):
    part = cumulative / max(float(cumulative[-1]) if len(share) else 0, 1e-9)
    block = part[:, None] * number - (rank + 0.5)
    pair[..., at] = np.clip(block, -2, 2)
    pair[..., at + 1] = np.abs(block) <= 0.5
  capacity = np.maximum(problem.cluster.memory_bytes, 1.0)
  pair[..., 5] = np.clip(memory[:, None] / capacity, 0, 2)
  pair[~decisions.allowed] = 0.0
  return pair


def _stack(*columns: object) -> np.ndarray:
  arrays = [np.asarray(column, np.float32) for column in columns]
  return np.stack(arrays, axis=1)


def _axes_of_nodes(axes: np.ndarray) -> np.ndarray:
  """Maps [A, N] ranks to [N, PER_NODE * A] positions and on-axis flags."""
  columns = np.maximum(_along(axes), 0.0), axes != UNKNOWN
  return np.concatenate(columns).T.astype(np.float32)


def _axes_of_pairs(
  axes: np.ndarray, rank: np.ndarray, number: np.ndarray
) -> np.ndarray:
  """Maps [A, N] ranks to [N, D, PER_PAIR * A] float32.

  Per axis: the distance in blocks between decision and device, -2 to 2, if the
  devices of one kind share the axis in equal blocks; a flag for the device's
  block; a flag for the device's turn in a round-robin assignment. All are 0 for
  decisions not on the axis. `rank` and `number` come from `_kind_ranks`.
  """
  parts = []
  for axis, along in zip(axes, _along(axes), strict=True):
    block = along[:, None] * number - (rank + 0.5)
    turn = axis[:, None] % number == rank
    part = np.stack((np.clip(block, -2, 2), abs(block) <= 0.5, turn), axis=-1)
    part[axis == UNKNOWN] = 0.0
    parts.append(part)
  return np.concatenate(parts, axis=-1).astype(np.float32)


def _along(axes: np.ndarray) -> np.ndarray:
  """Returns [A, N] relative positions on the axes, negative if not on one."""
  return (axes + 0.5) / (axes.max(axis=1, initial=0, keepdims=True) + 1.0)
