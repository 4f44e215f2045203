"""Links between devices, measured by size, and the buses that they share.

A tensor of 4 KiB to 64 MiB goes back and forth between two devices; the time of
further hops has no cost of starting a step. Between the devices of a process
with GPUs, transfers then run at the same time: where they take turns, their
links share a channel.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from tfplace.graph.cluster import Link
from tfplace.measure.calibrate.calibration import NETWORK_US
from tfplace.measure.local import host
from tfplace.measure.session import messages

# Bytes of a tensor -> further hops of its second load, an even number.
_HOPS = {4 << 10: 16, 64 << 10: 16, 1 << 20: 8}
_GPU_HOPS = {**_HOPS, 8 << 20: 4, 64 << 20: 2}
_SMALL = 3  # sizes of small tensors
_LEAST_US_PER_BYTE = 1e-7  # 10 TB/s, faster than any copy
_FIRST = 2  # hops of the first load, back to the source
_LARGEST = 64 << 20  # bytes of transfers at the same time
_STEPS = 5  # timed, of which the fastest counts
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
_Way: TypeAlias = tuple[int, int]


class _Trip(NamedTuple):
  """Costs between two devices, taken to be equal in both directions."""

  bandwidth: float  # bytes per us
  latency_us: float
  starting_us: float  # of a step


def timer_on(
  devices: Sequence[str],
  time_each: Callable[[messages.TimesRequest], Sequence[float]],
) -> Timer:
  """Returns a timer of loads on devices, by full name."""
  return lambda loads: time_each(request(devices, loads))


def gpu_links(devices: Sequence[str], timer: Timer) -> tuple[Link, ...]:
  """Measures the links between all devices of one process with GPUs."""
  ways = list(itertools.permutations(range(len(devices)), 2))
  trips = {}
  pairs = list(itertools.combinations(range(len(devices)), 2))
  for pair, trip in zip(pairs, _trips(pairs, _GPU_HOPS, timer), strict=True):
    trips[pair] = trips[pair[::-1]] = trip
  channels = _channels(devices, {way: trips[way] for way in ways}, timer)
  return tuple(
    Link(
      devices[i],
      devices[j],
      trips[i, j].bandwidth,
      trips[i, j].latency_us,
      channel=channels.get((i, j)),
    )
    for i, j in ways
  )


def equal_links(devices: Sequence[str], timer: Timer) -> tuple[Link, ...]:
  """Measures one link for all pairs of equal devices on one host."""
  if len(devices) < 2:
    return ()
  link = worker_links(devices[:2], timer)[0]
  return tuple(
    dataclasses.replace(link, src=src, dst=dst)
    for src, dst in itertools.permutations(devices, 2)
  )


def worker_links(pair: Sequence[str], timer: Timer) -> tuple[Link, Link]:
  """Measures both links between two devices, those of a timer.

  Between CPUs that a message reaches within a millisecond, the devices copy,
  and each does half of a transfer. Over a slow network, or where one is a GPU,
  they compute meanwhile.
  """
  ((bandwidth, latency_us, _),) = _trips([(0, 1)], _HOPS, timer)
  src, dst = pair
  if latency_us > NETWORK_US or "GPU" in map(host.kind_of, pair):
    link = Link(src, dst, bandwidth, latency_us)
  else:
    link = Link(
      src,
      dst,
      1 / _LEAST_US_PER_BYTE,
      send_us=latency_us / 2,
      recv_us=latency_us / 2,
      send_us_per_byte=1 / bandwidth / 2,
      recv_us_per_byte=1 / bandwidth / 2,
    )
  return link, dataclasses.replace(link, src=dst, dst=src)


def _trips(
  pairs: Sequence[_Way], hops: dict[int, int], timer: Timer
) -> list[_Trip]:
  """Times round trips between pairs of devices."""
  loads = [
    (Flow(*pair, size, count),)
    for pair in pairs
    for size, more in hops.items()
    for count in (_FIRST, _FIRST + more)
  ]
  took_us = np.array(timer(loads)).reshape(len(pairs), len(hops), 2)
  each_us = np.diff(took_us)[..., 0] / list(hops.values())
  sizes, trips = np.array([*hops]), []
  for first_us, hop_us in zip(
    took_us[..., 0], np.maximum(each_us, 1e-3), strict=True
  ):
    # Small tensors show the latency, large ones the bandwidth.
    per_byte = (hop_us[-1] - hop_us[-2]) / (sizes[-1] - sizes[-2])
    per_byte = max(float(per_byte), _LEAST_US_PER_BYTE)
    latency_us = float(np.median((hop_us - per_byte * sizes)[:_SMALL]))
    starting_us = float(first_us[0] - _FIRST * hop_us[0])
    trip = _Trip(1 / per_byte, max(latency_us, 0.0), max(starting_us, 0.0))
    trips.append(trip)
  return trips


def _channels(
  devices: Sequence[str], trips: dict[_Way, _Trip], timer: Timer
) -> dict[_Way, str]:
  """Returns the channel of each link that shares one.

  What holds for sending to the host holds for receiving from it.
  """
  hosts = [i for i, d in enumerate(devices) if host.kind_of(d) != "GPU"]
  groups = _candidates(len(devices), hosts, trips)
  loads: list[Load] = [(Flow(*way),) for way in trips]
  loads += [tuple(Flow(*way) for way in group) for group in groups]
  took_us = list(timer(loads))
  alone_us = {
    way: max(us - trip.starting_us, 1e-3)
    for (way, trip), us in zip(trips.items(), took_us, strict=False)
  }
  bus = {way: i for i, way in enumerate(trips)}
  for group, step_us in zip(groups, took_us[len(trips) :], strict=True):
    slowest_us = max(alone_us[way] for way in group)
    rest_us = sum(alone_us[way] for way in group) - slowest_us
    starting_us = max(trips[way].starting_us for way in group)
    if step_us - starting_us - slowest_us > _TURNS * rest_us:
      back = [way[::-1] for way in group if way[1] in hosts]
      for ways in filter(None, (group, back)):
        joined = {bus[way] for way in ways}
        first = min(joined)
        bus = {way: first if n in joined else n for way, n in bus.items()}
  numbers = list(bus.values())
  return {w: f"bus:{n}" for w, n in bus.items() if numbers.count(n) > 1}


def _candidates(
  num_devices: int, hosts: Sequence[int], trips: dict[_Way, _Trip]
) -> list[tuple[_Way, ...]]:
  """Lists groups of links that may share a bus.

  They are the two directions of a pair, links of one GPU that are equally fast,
  and GPUs that send to the host.
  """
  pairs = list(itertools.combinations(range(num_devices), 2))
  groups: list[tuple[_Way, ...]] = [(pair, pair[::-1]) for pair in pairs]
  for src in (i for i in range(num_devices) if i not in hosts):
    ways = sorted(
      (way for way in trips if way[0] == src), key=trips.__getitem__
    )
    while ways:
      fastest = _ALIKE * trips[ways[0]].bandwidth
      alike = [way for way in ways if trips[way].bandwidth <= fastest]
      groups.append(tuple(alike))
      ways = ways[len(alike) :]
  for one, other in pairs:
    groups += [((one, h), (other, h)) for h in hosts if h not in (one, other)]
  return [group for group in groups if len(group) > 1]


def empty_steps(devices: Sequence[str], count: int) -> messages.TimesRequest:
  """Builds the request that times a step without work on each device."""
  with tf.Graph().as_default() as graph:
    targets = []
    for device in devices:
      with tf.device(device):
        targets.append(tf.no_op().name)
  graph_def = graph.as_graph_def().SerializeToString()
  return messages.TimesRequest(graph_def, (), targets, count, _SECONDS)


def request(
  devices: Sequence[str], loads: Sequence[Load]
) -> messages.TimesRequest:
  """Builds the request that times loads in one session.

  The tensors are variables on their sources, so they are there at the start.
  """
  initializers: list[str] = []
  held: dict[tuple[int, int], tf.Tensor] = {}
  with tf.Graph().as_default() as graph:
    for i, load in enumerate(loads):
      ends = []
      for flow in load:
        key = flow.src, flow.size
        with tf.device(devices[flow.src]):
          if key not in held:
            held[key], initializer = _variable(*key)
            initializers.append(initializer)
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


def _variable(src: int, size: int) -> tuple[tf.Tensor, str]:
  """Builds a variable of `size` bytes, and the op that initializes it."""
  handle = tf.raw_ops.VarHandleOp(
    dtype=tf.float32, shape=(size // 4,), shared_name=f"held_{src}_{size}"
  )
  value = tf.ones(size // 4)
  initializer = tf.raw_ops.AssignVariableOp(resource=handle, value=value)
  return handle, initializer.name
