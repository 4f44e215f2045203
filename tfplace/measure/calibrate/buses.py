"""Links between the devices of a process with GPUs, and the buses they share.

A tensor of 4 KiB to 64 MiB goes back and forth between two devices; the time of
further hops has no cost of starting a step. Then transfers run at the same
time: where they take turns, their links share a channel.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tfplace.graph.cluster import Link
from tfplace.measure.local import host
from tfplace.measure.session import messages

# Bytes of a tensor -> further hops of its second load, an even number.
_HOPS = {4 << 10: 16, 64 << 10: 16, 1 << 20: 8, 8 << 20: 4, 64 << 20: 2}
_SMALL = 3  # sizes of small tensors
_LEAST_US_PER_BYTE = 1e-7  # 10 TB/s, faster than any copy
_FIRST = 2  # hops of the first load, back to the source
_LARGEST = 64 << 20  # bytes of transfers at the same time
_STEPS = 3  # timed, of which the fastest counts
_SECONDS = 30.0  # for all loads of a host, of which trips take most
_ALIKE = 1.5  # ratio of bandwidths up to which links may be of one bus
_TURNS = 0.5  # share of the slower transfers' time that shows a shared bus


class Flow(NamedTuple):
  """A tensor of `size` bytes that makes `hops` between two devices."""

  src: int
  dst: int
  size: int = _LARGEST
  hops: int = 1


Load: TypeAlias = tuple[Flow, ...]  # Flows at the same time.
# Returns the time of a step of each load, in microseconds.
Timer: TypeAlias = Callable[[Sequence[Load]], Sequence[float]]


def measured(devices: Sequence[str], timer: Timer) -> tuple[Link, ...]:
  """Measures the links between all devices of one process.

  Both directions of a pair are taken to be equal.

  Args:
    devices: full names.
    timer: times loads; see `request`.
  """
  pairs = list(itertools.combinations(range(len(devices)), 2))
  loads = [
    (Flow(*pair, size, hops),)
    for pair in pairs
    for size, more in _HOPS.items()
    for hops in (_FIRST, _FIRST + more)
  ]
  took = np.array(timer(loads)).reshape(len(pairs), len(_HOPS), 2)
  each = np.diff(took)[..., 0] / list(_HOPS.values())
  costs, starting, sizes = {}, {}, np.array([*_HOPS])
  for pair, first_us, hops in zip(pairs, took[..., 0], each, strict=True):
    hop_us = np.maximum(hops, 1e-3)
    # Small tensors show the latency, large ones the bandwidth.
    per_byte = (hop_us[-1] - hop_us[-2]) / (sizes[-1] - sizes[-2])
    per_byte = max(float(per_byte), _LEAST_US_PER_BYTE)
    latency_us = float(np.median((hop_us - per_byte * sizes)[:_SMALL]))
    for way in (pair, pair[::-1]):
      costs[way] = 1.0 / per_byte, max(latency_us, 0.0)
      starting[way] = max(float(first_us[0] - _FIRST * hop_us[0]), 0.0)
  channels = _channels(devices, costs, starting, timer)
  return tuple(
    Link(devices[i], devices[j], *costs[i, j], channel=channels.get((i, j)))
    for i, j in itertools.permutations(range(len(devices)), 2)
  )


_Way: TypeAlias = tuple[int, int]


def _channels(
  devices: Sequence[str],
  costs: dict[_Way, tuple[float, float]],
  starting_us: dict[_Way, float],
  timer: Timer,
) -> dict[_Way, str]:
  """Returns the channel of each link that shares one.

  Tried are the two directions of a pair, links of one source that are equally
  fast, and sources that send to the host at once. What holds for sending to the
  host holds for receiving from it.
  """
  cpu = [i for i, d in enumerate(devices) if not _is_gpu(d)]
  groups: list[tuple[_Way, ...]] = []
  for i, j in itertools.combinations(range(len(devices)), 2):
    groups.append(((i, j), (j, i)))
  for src in range(len(devices)):
    ways = sorted(
      (way for way in costs if way[0] == src), key=costs.__getitem__
    )
    while ways and src not in cpu:
      bus = [w for w in ways if costs[w][0] <= _ALIKE * costs[ways[0]][0]]
      groups.append(tuple(bus))
      ways = ways[len(bus) :]
  for one, other in itertools.combinations(range(len(devices)), 2):
    groups += [((one, c), (other, c)) for c in cpu if c not in (one, other)]
  groups = [group for group in groups if len(group) > 1]
  loads: list[tuple[Flow, ...]] = [(Flow(*way),) for way in costs]
  loads += [tuple(Flow(*way) for way in group) for group in groups]
  took = list(timer(loads))
  alone = {
    way: max(us - starting_us[way], 1e-3)
    for way, us in zip(costs, took, strict=False)
  }
  root = {way: way for way in costs}

  def find(way: _Way) -> _Way:
    while root[way] != way:
      way = root[way]
    return way

  for group, step_us in zip(groups, took[len(costs) :], strict=True):
    slowest = max(alone[way] for way in group)
    rest = sum(alone[way] for way in group) - slowest
    starting = max(starting_us[way] for way in group)
    if step_us - starting - slowest > _TURNS * rest:
      also = [way[::-1] for way in group if way[1] in cpu]
      for members in (group, also):
        for way in members[1:]:
          root[find(way)] = find(members[0])
  members = [find(way) for way in costs]
  return {
    way: f"bus:{members.index(at)}"
    for way, at in zip(costs, members, strict=True)
    if members.count(at) > 1
  }


def _is_gpu(device: str) -> bool:
  return host.kind_and_number(device)[0] == "GPU"


def request(
  devices: Sequence[str], loads: Sequence[Load]
) -> messages.TimesRequest:
  """Builds the request that times loads in one session.

  The tensors are variables on their sources, so they are there at the start.
  """
  initializers, held = [], {}
  with tf.Graph().as_default() as graph:
    for i, load in enumerate(loads):
      ends = []
      for flow in load:
        key = flow.src, flow.size
        if key not in held:
          with tf.device(devices[flow.src]):
            name = f"held_{flow.src}_{flow.size}"
            held[key] = tf.raw_ops.VarHandleOp(
              dtype=tf.float32, shape=(flow.size // 4,), shared_name=name
            )
            initializer = tf.raw_ops.AssignVariableOp(
              resource=held[key], value=tf.ones(flow.size // 4)
            )
            initializers.append(initializer.name)
        with tf.device(devices[flow.src]):
          tensor = tf.raw_ops.ReadVariableOp(
            resource=held[key], dtype=tf.float32
          )
        for hop in range(flow.hops):
          with tf.device(devices[flow.src if hop % 2 else flow.dst]):
            tensor = tf.identity(tensor)
        ends.append(tensor.op)
      with tf.device(devices[load[0].src]), tf.control_dependencies(ends):
        tf.no_op(f"load{i}")
  return messages.TimesRequest(
    graph.as_graph_def().SerializeToString(),
    initializers,
    [f"load{i}" for i in range(len(loads))],
    _STEPS,
    _SECONDS / 2,
  )
