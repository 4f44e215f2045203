"""Measures bandwidth, latency and gap of links with real transfers.

Latency is half a round trip of a scalar between idle devices. The time that a
transfer occupies its channel is measured while both devices compute: tensors
of several sizes are sent now and then, and each makes the step longer by `gap +
bytes / bandwidth`. Between processes of one host the cores that compute do that
work, so that an idle host would look too good. One tensor is sent in any case,
so that the latency, which a step waits for once, is no part of the difference.

The graphs whose steps are timed all end in the node "last".
"""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.core.cluster import Link
from tfplace.cost.profile import LinkFit, fit_link
from tfplace.errors import MeasurementError
from tfplace.measure.calibrate import communication
from tfplace.measure.local import runtime
from tfplace.measure.session import messages

LAST = "last"
_SIDE = 128  # of the matrices that keep a device busy
_PRODUCTS = 100


def empty_step(device: str) -> bytes:
  """A step without work on `device`."""
  graph = tf.Graph()
  with graph.as_default(), tf.device(device):
    tf.no_op(LAST)
  return graph.as_graph_def().SerializeToString()


def round_trips(src: str, dst: str, count: int) -> bytes:
  """A scalar that goes from `src` to `dst` and back, `count` times."""
  graph = tf.Graph()
  with graph.as_default():
    with tf.device(src):
      answer = tf.constant(0)
    for _ in range(count):
      with tf.device(dst):
        there = tf.identity(answer)
      with tf.device(src):
        answer = tf.identity(there)
    with tf.device(src), tf.control_dependencies([answer]):
      tf.no_op(LAST)
  return graph.as_graph_def().SerializeToString()


def busy_transfers(
  ways: Sequence[tuple[str, str]], size: int, count: int, sent: int
) -> bytes:
  """Products on every device, and now and then a tensor for each way.

  Args:
    ways: (source, destination) devices.
    size: bytes of a tensor.
    count: tensors for each way, spread evenly over the products.
    sent: the last so many are read at the destination, and the others at the
      source: the same ops with fewer transfers.
  """
  graph = tf.Graph()
  with graph.as_default():
    devices = dict.fromkeys(device for way in ways for device in way)
    products = {device: _products(device) for device in devices}
    ends = [chain[-1] for chain in products.values()]
    for src, dst in ways:
      with tf.device(src):
        payload = tf.constant(np.ones(max(1, size // 4), np.float32))
      for i in range(count):
        after = products[src][i * _PRODUCTS // (count + 1)]
        with tf.device(src), tf.control_dependencies([after]):
          tensor = tf.identity(payload)
        with tf.device(dst if i >= count - sent else src):
          # The rank reads no element: the transfer is all there is to it.
          ends.append(tf.raw_ops.Rank(input=tensor))
    with tf.device(ways[0][0]), tf.control_dependencies(_joined(ends)):
      tf.no_op(LAST)
  return graph.as_graph_def().SerializeToString()


def _products(device: str) -> list[tf.Tensor]:
  """A chain of matrix products."""
  with tf.device(device):
    matrix = tf.constant(np.full((_SIDE, _SIDE), 1 / _SIDE, np.float32))
    result = [tf.matmul(matrix, matrix)]
    while len(result) < _PRODUCTS:
      result.append(tf.matmul(result[-1], matrix))
  return result


def _joined(ends: Sequence[tf.Tensor]) -> list[tf.Operation]:
  """One no-op per device after all of its ends: one message each to wait."""
  by_device: dict[str, list[tf.Tensor]] = {}
  for end in ends:
    by_device.setdefault(end.device, []).append(end)
  result = []
  for device, tensors in by_device.items():
    with tf.device(device), tf.control_dependencies(tensors):
      result.append(tf.no_op())
  return result


# Bytes of a tensor, and how many of them one step sends each way, at most.
LOADS = ((4, 32), (16 << 10, 32), (128 << 10, 16), (1 << 20, 8))
_CHAIN = 8  # round trips in one step
_ROUNDS = 3
_STEPS = 5
TIMEOUT_S = 60.0
_LONG_US = 1e6  # what the transfers of a step may take
_NOISE_US = 1e-3  # for a transfer whose time is lost in noise
_SHARED_MEMORY = 1e6  # bytes/us, 1 TB/s: faster than any copy

Way = tuple[str, str]  # from a device to a device


@dataclasses.dataclass(frozen=True)
class LinkCosts:
  """A link's costs; `occupied_us` is bytes -> time per transfer."""

  bandwidth_bytes_per_us: float
  latency_us: float
  gap_us: float
  occupied_us: dict[str, float]

  def link(
    self, way: Way, channel: str | None, on_devices: bool = False
  ) -> Link:
    """A link; `on_devices` where its transfers are work of the devices."""
    link = Link(
      *way,
      bandwidth_bytes_per_us=self.bandwidth_bytes_per_us,
      latency_us=self.latency_us,
      gap_us=self.gap_us,
      channel=channel,
      extra={"occupied_us": self.occupied_us},
    )
    more = communication.as_timed(link) if on_devices else {}
    return dataclasses.replace(link, extra={**link.extra, **more})


def duplex_links(
  runner: runtime.Runtime, devices: Sequence[str]
) -> tuple[Link, ...]:
  """A measured link for each ordered pair, on a channel of its own.

  Raises:
    ChildError: a transfer failed.
  """
  ways = itertools.permutations(devices, 2)
  return tuple(measure(runner, [way]).link(way, None) for way in ways)


def loopback_links(
  runner: runtime.Runtime, devices: Sequence[str]
) -> tuple[Link, ...]:
  """Links between alike processes of one host.

  Both directions of a pair share a channel and are measured together. One
  pair is measured and stands for all.

  Raises:
    ChildError: a transfer failed.
  """
  if len(devices) < 2:
    return ()
  first, second = devices[:2]
  costs = measure(runner, [(first, second), (second, first)])
  result = []
  for a, b in itertools.combinations(range(len(devices)), 2):
    for way in ((devices[a], devices[b]), (devices[b], devices[a])):
      result.append(costs.link(way, f"loopback:{a}-{b}", on_devices=True))
  return tuple(result)


def measure(runner: runtime.Runtime, ways: Sequence[Way]) -> LinkCosts:
  """Measures one channel, which is used in all of `ways` at once."""
  latency = _round_trip_us(runner, *ways[0]) / 2
  occupied: dict[int, float] = {}
  for size, most in LOADS:
    count = most
    if len(occupied) > 1:
      count = min(most, int(_LONG_US / _expected_us(occupied, size)))
    if count < 2:
      break  # a slow link: the smaller sizes suffice
    occupied[size] = _occupied_us(runner, ways, size, count)
  fitted = _fit(list(occupied), list(occupied.values()))
  return LinkCosts(
    fitted.bandwidth_bytes_per_us,
    latency,
    gap_us=fitted.latency_us,
    occupied_us={str(size): us for size, us in occupied.items()},
  )


def _expected_us(occupied_us: dict[int, float], size: int) -> float:
  """Time of a larger transfer that grows with the bytes."""
  largest = max(occupied_us)
  return occupied_us[largest] * size / largest


def _fit(sizes_bytes: Sequence[int], times_us: Sequence[float]) -> LinkFit:
  """Rate and offset; where size does not matter, since memory is shared and
  nothing is copied, or cannot be told from noise, a very high rate.

  Times lost in noise do not count. Where only the largest transfer is above
  it, its time is all due to its bytes.
  """
  pairs = zip(sizes_bytes, times_us, strict=True)
  above = {size: us for size, us in pairs if us > _NOISE_US}
  if list(above) == [max(sizes_bytes)]:
    (size, took_us) = above.popitem()
    return LinkFit(size / took_us, 0.0)
  try:
    return fit_link(list(above), list(above.values()))
  except MeasurementError:
    return LinkFit(_SHARED_MEMORY, statistics.median(times_us))


def _round_trip_us(runner: runtime.Runtime, src: str, dst: str) -> float:
  there = _step_us(runner, round_trips(src, dst, _CHAIN))
  here = _step_us(runner, round_trips(src, src, _CHAIN))
  return max(there - here, 0.0) / _CHAIN


def _occupied_us(
  runner: runtime.Runtime, ways: Sequence[Way], size: int, count: int
) -> float:
  """The time that one transfer adds to a step of busy devices; above 0."""
  busy = busy_transfers(ways, size, count, sent=1)
  sending = busy_transfers(ways, size, count, sent=count)
  # Rounds alternate, so that a busy moment of the host hits both.
  rounds = [
    (_step_us(runner, busy), _step_us(runner, sending)) for _ in range(_ROUNDS)
  ]
  without, with_them = (min(column) for column in zip(*rounds, strict=True))
  each_us = (with_them - without) / ((count - 1) * len(ways))
  return max(each_us, _NOISE_US)


def _step_us(runner: runtime.Runtime, graph_def: bytes) -> float:
  """The fastest step that runs the node "last".

  The time that other processes of the host add is not the link's.
  """
  return min(runner.run(request(graph_def, _STEPS), TIMEOUT_S).step_us)


def request(graph_def: bytes, steps: int) -> messages.StepRequest:
  """Asks for steps of a graph that ends in the node "last"."""
  return messages.StepRequest(
    graph_def=graph_def,
    initializers=(),
    initializer_feeds=(),
    fetches=(),
    targets=(LAST,),
    warmup=2,
    steps=steps,
    traced_steps=0,
    phase_s=TIMEOUT_S,
  )
