"""The communication cost of a placement, as work of its devices. NumPy only.

Between processes of one host the cores that compute also write and read the
messages: communication takes time of both devices, and little else. A link
describes time between devices only. So a placement is extended here: producing
a tensor includes sending it, and receiving it is an op of its own, which takes
its turn on the destination when the message has arrived, and for which the
readers wait. The step of that graph, simulated by the same rules, is the one
that devices are measured to take.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.core.cluster import Cluster, Link
from tfplace.core.op_graph import OpGraph
from tfplace.core.paths import transfers
from tfplace.core.problem import Problem

RECEIVE = "Receive"  # type of the ops that are added
# Keys of `Link.extra`, and so of cluster files: the costs that were timed with
# busy devices, for a link that is work of its devices, and the factors on them.
TIMED_KEY, FACTORS_KEY = "timed_on_devices", "wire"
_SHARED_MEMORY = 1e6  # bytes/us: what remains of a transfer beside that work


@dataclasses.dataclass(frozen=True)
class CommunicationFactors:
  """Factors on timed costs, as calibration finds them.

  Attributes:
    message: on the time of both devices per message, whatever its size.
    bytes: on the time of both devices per byte.
    latency: on the time in which neither device works on the message.
    computing: on ops while other devices of the host compute as well.
  """

  message: float = 1.0
  bytes: float = 1.0
  latency: float = 1.0
  computing: float = 1.0

  def recorded(self, cluster: Cluster) -> Cluster:
    """The cluster with these in its links, where `factors_of` finds them."""
    links = tuple(
      dataclasses.replace(
        link, extra={**link.extra, FACTORS_KEY: dataclasses.asdict(self)}
      )
      for link in cluster.links
    )
    return dataclasses.replace(cluster, links=links)


def factors_of(cluster: Cluster) -> CommunicationFactors | None:
  """Those recorded; None where no link takes time of its devices."""
  for link in cluster.links:
    if TIMED_KEY in link.extra:
      return CommunicationFactors(**link.extra.get(FACTORS_KEY, {}))
  return None


def as_timed(link: Link) -> dict[str, Any]:
  """The entry of `extra` that makes a link the work of its devices."""
  return {
    TIMED_KEY: {
      "message_us": link.gap_us,
      "us_per_byte": 1.0 / link.bandwidth_bytes_per_us,
      "latency_us": link.latency_us,
    }
  }


@dataclasses.dataclass(frozen=True, eq=False)
class Messages:
  """A placement's messages as ops; [n] are the ops of `problem`.

  Attributes:
    problem: those of the placed problem, in order, and one for each message.
    devices: [n] where they are.
    ops_us: [n] time of ops alone.
    overlap: [n] share of an op's time in which other devices compute.
    message_us: [n] time for messages, as timed.
    bytes_us: [n] time for the bytes of messages, as timed.
    is_timed: [num_devices, num_devices] bool: links whose costs are in the ops,
      all but latency.
  """

  problem: Problem
  devices: np.ndarray
  ops_us: np.ndarray
  overlap: np.ndarray
  message_us: np.ndarray
  bytes_us: np.ndarray
  is_timed: np.ndarray

  def times_us(self, factors: CommunicationFactors) -> np.ndarray:
    """[n] the time of each op on its device."""
    slowed = self.ops_us * (1.0 + (factors.computing - 1.0) * self.overlap)
    return (
      slowed + factors.message * self.message_us + factors.bytes * self.bytes_us
    )

  def costed(self, factors: CommunicationFactors) -> Problem:
    """The problem with these times, to be simulated at `devices` only."""
    times = self.times_us(factors)
    kinds = {device.kind for device in self.problem.cluster.devices}
    graph = dataclasses.replace(
      self.problem.graph, time_us={kind: times for kind in kinds}
    )
    return Problem(graph, _slowed(self.problem.cluster, factors.latency))


def with_messages(problem: Problem, devices: np.ndarray) -> Messages:
  """The messages of a placement as ops, and links without those costs.

  Args:
    problem: what is placed.
    devices: [num_ops] a placement of it.
  """
  graph = problem.graph
  timed = _timed(problem.cluster)
  is_timed = np.isfinite(timed["latency_us"])
  ends = devices[graph.edge_src], devices[graph.edge_dst]
  crossing = np.flatnonzero(is_timed[ends])
  sent, message_of = transfers(graph, devices, among=crossing)
  src, dst = graph.edge_src[sent], graph.edge_dst[sent]
  way = devices[src], devices[dst]
  costs = {
    "message_us": timed["message_us"][way],
    "bytes_us": timed["us_per_byte"][way] * graph.edge_bytes[sent],
  }
  ops_us = problem.time_us[np.arange(graph.num_ops), devices]
  return Messages(
    Problem(
      _graph(graph, devices, crossing, sent, message_of[crossing]),
      _latency_only(problem.cluster),
    ),
    devices=np.concatenate([devices, devices[dst]]).astype(np.int32),
    ops_us=_padded(ops_us, len(sent), 0.0),
    overlap=_padded(_overlap(problem, devices, ops_us), len(sent), 0.0),
    **{key: _at_both_ends(graph, src, each) for key, each in costs.items()},
    is_timed=is_timed,
  )


def _timed(cluster: Cluster) -> Mapping[str, np.ndarray]:
  """[num_devices, num_devices] timed costs; NaN for other links."""
  index = {device.name: i for i, device in enumerate(cluster.devices)}
  keys = ("message_us", "us_per_byte", "latency_us")
  shape = (len(index), len(index))
  result = {key: np.full(shape, np.nan) for key in keys}
  for link in cluster.links:
    for key, value in link.extra.get(TIMED_KEY, {}).items():
      if key in result:
        result[key][index[link.src], index[link.dst]] = value
  return result


def _graph(
  graph: OpGraph,
  devices: np.ndarray,
  crossing: np.ndarray,
  sent: np.ndarray,
  message_of: np.ndarray,
) -> OpGraph:
  """The graph in which messages are ops between producer and readers."""
  count, is_data = len(sent), graph.edge_output[sent] >= 0
  receivers = graph.num_ops + np.arange(count, dtype=np.int32)
  src, output = graph.edge_src.copy(), graph.edge_output.copy()
  src[crossing] = receivers[message_of]
  output[crossing] = np.minimum(output[crossing], 0)
  ends = graph.output_offsets[-1] + np.cumsum(is_data)
  names = tuple(
    f"{graph.names[graph.edge_src[e]]}:{graph.edge_output[e]}"
    f" to {devices[graph.edge_dst[e]]}"
    for e in sent
  )
  return dataclasses.replace(
    graph,
    names=graph.names + names,
    types=graph.types + (RECEIVE,) * count,
    time_us={k: _padded(t, count, 0.0) for k, t in graph.time_us.items()},
    output_offsets=np.concatenate([graph.output_offsets, ends]),
    output_bytes=np.concatenate(
      [graph.output_bytes, graph.edge_bytes[sent][is_data]]
    ),
    persistent_bytes=_padded(graph.persistent_bytes, count, 0.0),
    temp_bytes=_padded(graph.temp_bytes, count, 0.0),
    colocation=_padded(graph.colocation, count, -1),
    layer=_padded(graph.layer, count, -1),
    microbatch=_padded(graph.microbatch, count, -1),
    edge_src=np.concatenate([src, graph.edge_src[sent]]),
    edge_output=np.concatenate([output, graph.edge_output[sent]]),
    edge_dst=np.concatenate([graph.edge_dst, receivers]),
  )


def _latency_only(cluster: Cluster) -> Cluster:
  """Links with latency only, beside the work of the devices."""
  links = tuple(
    dataclasses.replace(
      link,
      bandwidth_bytes_per_us=_SHARED_MEMORY,
      gap_us=0.0,
      latency_us=link.extra[TIMED_KEY]["latency_us"],
    )
    if TIMED_KEY in link.extra
    else link
    for link in cluster.links
  )
  return dataclasses.replace(cluster, links=links)


def _slowed(cluster: Cluster, latency: float) -> Cluster:
  """These links with their latency times a factor."""
  links = tuple(
    dataclasses.replace(link, latency_us=link.latency_us * latency)
    if TIMED_KEY in link.extra
    else link
    for link in cluster.links
  )
  return dataclasses.replace(cluster, links=links)


def _overlap(
  problem: Problem, devices: np.ndarray, ops_us: np.ndarray
) -> np.ndarray:
  """[num_ops] share of its time in which another device computes, at most.

  By the work of the devices: beside one that has as much work or more, a
  device is never alone.
  """
  count = problem.cluster.num_devices
  work = np.bincount(devices, ops_us, count)
  others = work.sum() - work
  share = np.divide(others, work, out=np.zeros(count), where=work > 0)
  return np.minimum(share, 1.0)[devices]


def _at_both_ends(
  graph: OpGraph, src: np.ndarray, each_us: np.ndarray
) -> np.ndarray:
  """[num_ops + messages] time of producers and receivers for messages."""
  sending = np.bincount(src, each_us, graph.num_ops)
  return np.concatenate([sending, each_us])


def _padded(array: np.ndarray, count: int, value: float) -> np.ndarray:
  return np.concatenate([array, np.full(count, value, array.dtype)])
