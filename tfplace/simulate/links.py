"""Transfer times on links, by rule 3 (channel) of docs/simulation.md.

The engine divides bytes by the bandwidth. Estimates and proofs multiply by its
inverse, which `LINK` records also hold; these can describe classes of devices.
"""

from typing import Any, TypeVar

import numpy as np

from tfplace.graph.cluster import MESSAGE_COSTS, Cluster
from tfplace.graph.problem import Problem
from tfplace.simulate.jit import Index, inlined

Us = TypeVar("Us", float, np.ndarray)
# `Cluster` or `link_table`: [num_devices, num_devices] fields of links.
LinkFields = Any

# A link by rule 3, in microseconds and bytes; `channel` is -1 without a link
# and between classes of devices. Then follow estimates of a message and per
# byte: the time from the end of the producer, with its sends, to the reader,
# receives included, and the time of the channel alone. Without a link,
# `delay_us` is infinite and the times per byte are 0.
LINK = np.dtype(
  [
    ("bandwidth", np.float64),
    ("latency_us", np.float64),
    ("gap_us", np.float64),
    ("send_us", np.float64),
    ("send_us_per_byte", np.float64),
    ("recv_us", np.float64),
    ("recv_us_per_byte", np.float64),
    ("delay_us", np.float64),
    ("delay_us_per_byte", np.float64),
    ("channel_us_per_byte", np.float64),
    ("channel", np.int32),
  ],
  align=True,
)


def transfer_ends(
  links: LinkFields,
  start_us: Us,
  num_bytes: Us,
  src: Index | np.ndarray,
  dst: Index | np.ndarray,
) -> tuple[Us, Us, Us]:
  """Returns when a transfer is sent, arrives, and frees its channel.

  `start_us` is the start on the channel. Arguments are numbers or arrays.
  """
  sent_us = start_us + num_bytes / links.bandwidth[src, dst]
  arrival_us = sent_us + links.latency_us[src, dst]
  return sent_us, arrival_us, sent_us + links.gap_us[src, dst]


def send_us(
  links: LinkFields,
  num_bytes: Us,
  src: Index | np.ndarray,
  dst: Index | np.ndarray,
) -> Us:
  """Returns the time of a send on the producer's device, after the op."""
  return links.send_us[src, dst] + num_bytes * links.send_us_per_byte[src, dst]


def receive_us(
  links: LinkFields,
  num_bytes: Us,
  src: Index | np.ndarray,
  dst: Index | np.ndarray,
) -> Us:
  """Returns the time of a receive on the destination; 0 means no receive."""
  return links.recv_us[src, dst] + num_bytes * links.recv_us_per_byte[src, dst]


compiled_transfer_ends = inlined(transfer_ends)
compiled_send_us = inlined(send_us)
compiled_receive_us = inlined(receive_us)


@inlined
def arrival_us(
  links: np.ndarray, start_us: float, num_bytes: float, src: Index, dst: Index
) -> float:
  """Returns when readers get an output sent at `start_us` on a free channel."""
  link = links[src, dst]
  return start_us + num_bytes * link.delay_us_per_byte + link.delay_us


@inlined
def free_us(
  links: np.ndarray, start_us: float, num_bytes: float, src: Index, dst: Index
) -> float:
  """Returns when the channel of a transfer started at `start_us` is free."""
  link = links[src, dst]
  return start_us + num_bytes * link.channel_us_per_byte + link.gap_us


def link_table(cluster: Cluster) -> np.ndarray:
  """Returns the [num_devices, num_devices] `LINK` records of a cluster."""
  linked = cluster.channel >= 0
  result = np.zeros(linked.shape, LINK)
  for name in ("bandwidth", "latency_us", "gap_us", *MESSAGE_COSTS, "channel"):
    result[name] = getattr(cluster, name)
  us_per_byte, fixed_us = _delays(cluster)
  result["delay_us"] = np.where(linked, fixed_us, np.inf)
  result["delay_us_per_byte"] = np.where(linked, us_per_byte, 0.0)
  result["channel_us_per_byte"] = np.where(linked, 1 / cluster.bandwidth, 0.0)
  return result


def _delays(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
  """Returns time per byte and fixed time from an op's end to its reader.

  Both are [num_devices, num_devices] microseconds and include sends and
  receives. The time per byte is NaN without a link.
  """
  per_byte = cluster.send_us_per_byte + cluster.recv_us_per_byte
  fixed_us = cluster.send_us + cluster.recv_us
  return 1 / cluster.bandwidth + per_byte, cluster.latency_us + fixed_us


def best_links(cluster: Cluster, class_of: np.ndarray) -> np.ndarray:
  """Returns the best delays between classes of devices, without gaps.

  Each of the [num_classes, num_classes] `LINK` records has the least time per
  byte and the least latency of any link between two devices of these classes.
  `class_of` has the [num_devices] classes.
  """
  count = int(class_of.max()) + 1
  us_per_byte = np.full((count, count), np.inf)
  fixed_us = np.full((count, count), np.inf)
  src, dst = np.nonzero(cluster.channel >= 0)
  apart = src != dst
  src, dst = src[apart], dst[apart]
  at = class_of[src], class_of[dst]
  delays = _delays(cluster)
  np.minimum.at(us_per_byte, at, delays[0][src, dst])
  np.minimum.at(fixed_us, at, delays[1][src, dst])
  result = np.zeros((count, count), LINK)
  result["delay_us"], result["channel"] = fixed_us, -1
  result["delay_us_per_byte"] = np.where(np.isinf(us_per_byte), 0, us_per_byte)
  return result


def mean_transfer(
  cluster: Cluster, with_gap: bool = False
) -> tuple[float, float]:
  """Returns the mean microseconds per byte and per transfer over all links.

  The means include sends and receives and, if `with_gap`, the gap after a
  transfer. They are 0 without links.
  """
  linked = (cluster.channel >= 0) & ~np.eye(cluster.num_devices, dtype=bool)
  if not linked.any():
    return 0.0, 0.0
  us_per_byte, fixed_us = _delays(cluster)
  fixed_us = fixed_us + (cluster.gap_us if with_gap else 0.0)
  return float(us_per_byte[linked].mean()), float(fixed_us[linked].mean())


def least_transfer_us(cluster: Cluster, num_bytes: np.ndarray) -> np.ndarray:
  """Returns the least time from an op's end to a reader on another device.

  The op's end includes its sends. The result is infinite without links.
  """
  if not cluster.links:
    return np.full(len(num_bytes), np.inf)
  fixed_us = min(link.latency_us + link.recv_us for link in cluster.links)
  fastest = max(link.bandwidth_bytes_per_us for link in cluster.links)
  per_byte = min(link.recv_us_per_byte for link in cluster.links)
  return fixed_us + num_bytes / fastest + num_bytes * per_byte


def serial_us(problem: Problem) -> float:
  """Bounds any step from above: all ops and transfers run one by one."""
  cluster, linked = problem.cluster, problem.cluster.channel >= 0
  op_us = np.where(problem.time_us > 0, cluster.op_overhead_us, 0.0)
  op_us += np.nan_to_num(problem.time_us)
  total = float(op_us.max(axis=1).sum())
  if linked.any():
    _, fixed_us = _delays(cluster)
    fixed = float((fixed_us + cluster.gap_us)[linked].max())
    slowest = float(cluster.bandwidth[linked].min())
    num_bytes = float(problem.graph.edge_bytes.sum())
    total += num_bytes / slowest
    per_byte = cluster.send_us_per_byte + cluster.recv_us_per_byte
    total += num_bytes * float(per_byte.max())
    total += fixed * problem.graph.num_edges
  return total
