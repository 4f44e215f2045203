"""What a transfer takes on a link: rule 3 of the formats, for all who estimate,
prove or explain besides the engine, which calls it too.

The engine divides bytes by the bandwidth, as the formats say. Estimates and
proofs multiply by its inverse, in `Links`, where classes of devices may stand
for devices and a missing link takes infinitely long.
"""

from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from tfplace.core.cluster import Cluster
from tfplace.core.problem import Problem
from tfplace.simulate.jit import Index, inlined

Us = TypeVar("Us", float, np.ndarray)


class Matrices(Protocol):
  """The [num_devices, num_devices] fields of links, as of a `Cluster`."""

  @property
  def bandwidth(self) -> np.ndarray: ...
  @property
  def latency_us(self) -> np.ndarray: ...
  @property
  def gap_us(self) -> np.ndarray: ...
  @property
  def send_us(self) -> np.ndarray: ...
  @property
  def send_us_per_byte(self) -> np.ndarray: ...
  @property
  def recv_us(self) -> np.ndarray: ...
  @property
  def recv_us_per_byte(self) -> np.ndarray: ...


def transfer_ends(
  links: Matrices,
  start_us: Us,
  num_bytes: Us,
  src: Index | np.ndarray,
  dst: Index | np.ndarray,
) -> tuple[Us, Us, Us]:
  """When a transfer that starts then is sent, arrives, and frees its channel.

  Args:
    links: of the cluster.
    start_us: when it gets its channel; like the others a number or an array.
    num_bytes: its size.
    src: sending device.
    dst: receiving device.
  """
  sent_us = start_us + num_bytes / links.bandwidth[src, dst]
  arrival_us = sent_us + links.latency_us[src, dst]
  return sent_us, arrival_us, sent_us + links.gap_us[src, dst]


def send_us(
  links: Matrices,
  num_bytes: Us,
  src: Index | np.ndarray,
  dst: Index | np.ndarray,
) -> Us:
  """What sending takes of the producer's device, after the op's time."""
  return links.send_us[src, dst] + num_bytes * links.send_us_per_byte[src, dst]


def receive_us(
  links: Matrices,
  num_bytes: Us,
  src: Index | np.ndarray,
  dst: Index | np.ndarray,
) -> Us:
  """What receiving takes of the destination; where 0, there is no receive."""
  return links.recv_us[src, dst] + num_bytes * links.recv_us_per_byte[src, dst]


compiled_transfer_ends = inlined(transfer_ends)
compiled_send_us = inlined(send_us)
compiled_receive_us = inlined(receive_us)


class Links(NamedTuple):
  """The links between devices, or between classes of devices, for kernels.

  Attributes:
    us_per_byte: [n, n] float64 from, to; 0 without a link.
    latency_us: [n, n] float64; infinite without a link.
    gap_us: [n, n] float64.
    channel: [n, n] int32; -1 without a link, and between classes.
  """

  us_per_byte: np.ndarray
  latency_us: np.ndarray
  gap_us: np.ndarray
  channel: np.ndarray


@inlined
def arrival_us(
  links: Links, start_us: float, num_bytes: float, src: Index, dst: Index
) -> float:
  """When a transfer that starts then arrives."""
  return (
    start_us
    + num_bytes * links.us_per_byte[src, dst]
    + links.latency_us[src, dst]
  )


@inlined
def free_us(
  links: Links, start_us: float, num_bytes: float, src: Index, dst: Index
) -> float:
  """When its channel is free again."""
  return (
    start_us + num_bytes * links.us_per_byte[src, dst] + links.gap_us[src, dst]
  )


def links_of(cluster: Cluster) -> Links:
  """The links between a cluster's devices."""
  linked = cluster.channel >= 0
  return Links(
    np.where(linked, 1 / cluster.bandwidth, 0.0),
    np.where(linked, cluster.latency_us, np.inf),
    cluster.gap_us,
    cluster.channel,
  )


def best_links(cluster: Cluster, class_of: np.ndarray) -> Links:
  """Between classes of devices, the best bandwidth and the best latency of any
  link from one to another device of them, without gaps.

  Args:
    cluster: the devices.
    class_of: [num_devices] class of each.
  """
  count = int(class_of.max()) + 1
  us_per_byte = np.full((count, count), np.inf)
  latency_us = np.full((count, count), np.inf)
  src, dst = np.nonzero(cluster.channel >= 0)
  apart = src != dst
  src, dst = src[apart], dst[apart]
  at = class_of[src], class_of[dst]
  np.minimum.at(us_per_byte, at, 1 / cluster.bandwidth[src, dst])
  np.minimum.at(latency_us, at, cluster.latency_us[src, dst])
  return Links(
    np.where(np.isinf(us_per_byte), 0.0, us_per_byte),
    latency_us,
    np.zeros((count, count)),
    np.full((count, count), -1, np.int32),
  )


def reversed_links(links: Links) -> Links:
  """The same against time: what was sent is received."""
  return Links(*(np.ascontiguousarray(matrix.T) for matrix in links))


def mean_transfer(
  cluster: Cluster, with_gap: bool = False
) -> tuple[float, float]:
  """Mean microseconds per byte, and besides, over the links; 0 without any.

  Args:
    cluster: the devices.
    with_gap: count the gap after a transfer, too.
  """
  linked = (cluster.channel >= 0) & ~np.eye(cluster.num_devices, dtype=bool)
  if not linked.any():
    return 0.0, 0.0
  fixed_us = cluster.latency_us + (cluster.gap_us if with_gap else 0.0)
  per_byte = 1 / cluster.bandwidth[linked]
  return float(per_byte.mean()), float(fixed_us[linked].mean())


def least_transfer_us(cluster: Cluster, num_bytes: np.ndarray) -> np.ndarray:
  """The least that transfers take on any link; infinite without links."""
  if not cluster.links:
    return np.full(len(num_bytes), np.inf)
  latency_us = min(link.latency_us for link in cluster.links)
  fastest = max(link.bandwidth_bytes_per_us for link in cluster.links)
  return latency_us + num_bytes / fastest


def serial_us(problem: Problem) -> float:
  """No step takes longer: every op, gap and transfer in turn."""
  cluster, linked = problem.cluster, problem.cluster.channel >= 0
  op_us = np.where(problem.time_us > 0, cluster.op_overhead_us, 0.0)
  op_us += np.nan_to_num(problem.time_us)
  total = float(op_us.max(axis=1).sum())
  if linked.any():
    fixed = float((cluster.latency_us + cluster.gap_us)[linked].max())
    slowest = float(cluster.bandwidth[linked].min())
    total += float(problem.graph.edge_bytes.sum()) / slowest
    total += fixed * problem.graph.num_edges
  return total
