"""What a tensor takes of the devices between which it goes. NumPy only.

Between processes of one host a message is written and read by the cores that
compute: it takes time of both devices, and little else. The rules of a
simulated step know time of ops and time of links. So what a placement really
costs there is said in ops: to make a tensor includes sending it, and receiving
it is an op of its own, which has its turn on the other device when the message
is there, and for which the readers wait. The step of that graph, by the same
rules, is the one that devices are seen to take.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.core.cluster import Cluster, Link
from tfplace.core.op_graph import OpGraph
from tfplace.core.problem import Problem

RECEIVE = "Receive"  # type of the ops that are added
# Keys of `Link.extra`: the figures that were timed with busy devices, for a
# link that is work of its devices, and the factors found by calibration.
TIMED, WIRE = "timed_on_devices", "wire"
_SHARED_MEMORY = 1e6  # bytes/us: what is left of a transfer beside that work


@dataclasses.dataclass(frozen=True)
class Wire:
  """Factors on what was timed; as found by calibration.

  Attributes:
    message: on the time of both devices for a message, an empty one too.
    bytes: on their time for its bytes.
    latency: on the time in which neither works on it.
    computing: on ops while other devices of the host compute as well.
  """

  message: float = 1.0
  bytes: float = 1.0
  latency: float = 1.0
  computing: float = 1.0

  def noted(self, cluster: Cluster) -> Cluster:
    """The cluster with this in its links, where `of` finds it."""
    links = tuple(
      dataclasses.replace(
        link, extra={**link.extra, WIRE: dataclasses.asdict(self)}
      )
      for link in cluster.links
    )
    return dataclasses.replace(cluster, links=links)


def of(cluster: Cluster) -> Wire | None:
  """What was noted; None where no link takes time of its devices."""
  for link in cluster.links:
    if TIMED in link.extra:
      return Wire(**link.extra.get(WIRE, {}))
  return None


def as_timed(link: Link) -> dict[str, Any]:
  """The entry of `extra` by which a link is work of its devices."""
  return {
    TIMED: {
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
    is_timed: [num_devices, num_devices] bool: links of which nothing is left
      but latency, for the rest is in the ops.
  """

  problem: Problem
  devices: np.ndarray
  ops_us: np.ndarray
  overlap: np.ndarray
  message_us: np.ndarray
  bytes_us: np.ndarray
  is_timed: np.ndarray

  def times_us(self, wire: Wire) -> np.ndarray:
    """[n] what each op takes where it is."""
    slowed = self.ops_us * (1.0 + (wire.computing - 1.0) * self.overlap)
    return slowed + wire.message * self.message_us + wire.bytes * self.bytes_us

  def priced(self, wire: Wire) -> Problem:
    """The problem with these times, to be simulated at `devices` only."""
    times = self.times_us(wire)
    kinds = {device.kind for device in self.problem.cluster.devices}
    graph = dataclasses.replace(
      self.problem.graph, time_us={kind: times for kind in kinds}
    )
    return Problem(graph, _slowed(self.problem.cluster, wire.latency))


def with_messages(problem: Problem, devices: np.ndarray) -> Messages:
  """The messages of a placement as ops, the links without what those take.

  Args:
    problem: what is placed.
    devices: [num_ops] a placement of it.
  """
  graph = problem.graph
  timed = _timed(problem.cluster)
  is_timed = np.isfinite(timed["latency_us"])
  ends = devices[graph.edge_src], devices[graph.edge_dst]
  crossing = np.flatnonzero(is_timed[ends])
  sent, message_of = _distinct(graph, devices, crossing)
  src, dst = graph.edge_src[sent], graph.edge_dst[sent]
  way = devices[src], devices[dst]
  costs = {
    "message_us": timed["message_us"][way],
    "bytes_us": timed["us_per_byte"][way] * graph.edge_bytes[sent],
  }
  ops_us = problem.time_us[np.arange(graph.num_ops), devices]
  return Messages(
    Problem(
      _graph(graph, devices, crossing, sent, message_of),
      _latency_only(problem.cluster),
    ),
    devices=np.concatenate([devices, devices[dst]]).astype(np.int32),
    ops_us=_padded(ops_us, len(sent), 0.0),
    overlap=_padded(_overlap(problem, devices, ops_us), len(sent), 0.0),
    **{key: _at_both_ends(graph, src, each) for key, each in costs.items()},
    is_timed=is_timed,
  )


def _timed(cluster: Cluster) -> Mapping[str, np.ndarray]:
  """[num_devices, num_devices] figures; NaN where devices have no part."""
  index = {device.name: i for i, device in enumerate(cluster.devices)}
  keys = ("message_us", "us_per_byte", "latency_us")
  shape = (len(index), len(index))
  result = {key: np.full(shape, np.nan) for key in keys}
  for link in cluster.links:
    for key, value in link.extra.get(TIMED, {}).items():
      if key in result:
        result[key][index[link.src], index[link.dst]] = value
  return result


def _distinct(
  graph: OpGraph, devices: np.ndarray, crossing: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """An edge of each message, and the message of each crossing edge.

  An output goes once to each device that reads it.
  """
  src, dst = graph.edge_src[crossing], graph.edge_dst[crossing]
  outputs = int(graph.edge_output.max(initial=0)) + 2
  keys = src.astype(np.int64) * outputs + graph.edge_output[crossing] + 1
  keys = keys * (int(devices.max(initial=0)) + 1) + devices[dst]
  _, first, message_of = np.unique(keys, return_index=True, return_inverse=True)
  return crossing[first], message_of.reshape(-1)


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
  """Links of which nothing but latency is left beside the devices' work."""
  links = tuple(
    dataclasses.replace(
      link,
      bandwidth_bytes_per_us=_SHARED_MEMORY,
      gap_us=0.0,
      latency_us=link.extra[TIMED]["latency_us"],
    )
    if TIMED in link.extra
    else link
    for link in cluster.links
  )
  return dataclasses.replace(cluster, links=links)


def _slowed(cluster: Cluster, latency: float) -> Cluster:
  """Such links with so many times the latency."""
  links = tuple(
    dataclasses.replace(link, latency_us=link.latency_us * latency)
    if TIMED in link.extra
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
  """[num_ops + messages] what producers and receivers of messages take."""
  sending = np.bincount(src, each_us, graph.num_ops)
  return np.concatenate([sending, each_us])


def _padded(array: np.ndarray, count: int, value: float) -> np.ndarray:
  return np.concatenate([array, np.full(count, value, array.dtype)])
