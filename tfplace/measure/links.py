"""Bandwidth and latency of links, from real transfers.

For each ordered pair of devices and several sizes, a chain of tensors goes
from the one to the other, each sent when the answer to the one before (a
scalar) has come back. What such a chain takes per transfer is fitted by
`latency + bytes / bandwidth`. A burst of scalars tells the gap: the time that
a channel takes for a message of next to no bytes.
"""

import statistics
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.cost.profile import LinkFit, fit_link
from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Link
from tfplace.measure import messages, runtime

SIZES_BYTES = (4, 16 << 10, 256 << 10, 1 << 20, 4 << 20)
_CHAIN = 8  # transfers in one step
_BURST = 64  # scalars sent at once
_STEPS = 7
_SHARED_MEMORY = 1e6  # bytes/us, 1 TB/s: faster than any copy
_TIMEOUT_S = 60.0


def measure_links(
  runner: runtime.Runtime,
  devices: Sequence[str],
  sizes_bytes: Sequence[int] = SIZES_BYTES,
) -> tuple[Link, ...]:
  """A link for each ordered pair of `devices`, each on a channel of its own.

  Raises:
    ChildError: a transfer failed.
  """
  result = []
  for src in devices:
    for dst in devices:
      if src != dst:
        times = transfer_times_us(runner, src, dst, sizes_bytes)
        fitted = _fit(sizes_bytes, times)
        result.append(
          Link(
            src,
            dst,
            bandwidth_bytes_per_us=fitted.bandwidth_bytes_per_us,
            latency_us=fitted.latency_us,
            gap_us=gap_us(runner, src, dst),
            extra={"measured_us": _by_size(sizes_bytes, times)},
          )
        )
  return tuple(result)


def _fit(sizes_bytes: Sequence[int], times_us: Sequence[float]) -> LinkFit:
  """The link; where size does not matter, since memory is shared and nothing
  is copied, or cannot be told from noise, one of a very high bandwidth.
  """
  try:
    return fit_link(sizes_bytes, times_us)
  except MeasurementError:
    return LinkFit(_SHARED_MEMORY, statistics.median(times_us))


def _by_size(
  sizes_bytes: Sequence[int], times_us: Sequence[float]
) -> dict[str, float]:
  return {str(s): t for s, t in zip(sizes_bytes, times_us, strict=True)}


def transfer_times_us(
  runner: runtime.Runtime, src: str, dst: str, sizes_bytes: Sequence[int]
) -> list[float]:
  """Median time of one transfer of each size from `src` to `dst`.

  The answer of 4 bytes counts as half of a round trip of 4 bytes.
  """
  back = _round_trip_us(runner, src, dst, 4) / 2
  return [
    max(_round_trip_us(runner, src, dst, size) - back, back / 2)
    for size in sizes_bytes
  ]


def _round_trip_us(
  runner: runtime.Runtime, src: str, dst: str, size: int
) -> float:
  """Time of `size` bytes one way and 4 bytes back."""
  empty = _chain_us(runner, src, src, size)
  return max(_chain_us(runner, src, dst, size) - empty, 0.0) / _CHAIN


def gap_us(runner: runtime.Runtime, src: str, dst: str) -> float:
  """Time that each further scalar of a burst adds."""
  one, many = (_burst_us(runner, src, dst, n) for n in (1, _BURST))
  local = _burst_us(runner, src, src, _BURST)
  alone = _burst_us(runner, src, src, 1)
  return max(0.0, (many - one) - (local - alone)) / (_BURST - 1)


def _burst_us(runner: runtime.Runtime, src: str, dst: str, count: int) -> float:
  return _median_us(runner, _burst(src, dst, count))


def _chain_us(runner: runtime.Runtime, src: str, dst: str, size: int) -> float:
  return _median_us(runner, _chain(src, dst, size))


def _median_us(
  runner: runtime.Runtime, graph_def: tf.compat.v1.GraphDef
) -> float:
  """Median time of a step that runs the node "last"."""
  request = messages.StepRequest(
    graph_def=graph_def.SerializeToString(),
    initializers=(),
    initializer_feeds=(),
    fetches=(),
    targets=("last",),
    warmup=2,
    steps=_STEPS,
    traced_steps=0,
    phase_s=_TIMEOUT_S,
  )
  return statistics.median(runner.run(request, _TIMEOUT_S).step_us)


def _burst(src: str, dst: str, count: int) -> tf.compat.v1.GraphDef:
  graph = tf.Graph()
  with graph.as_default():
    with tf.device(src):
      payload = tf.constant(0)
      sent = [tf.identity(payload) for _ in range(count)]
    with tf.device(dst):
      received = [tf.raw_ops.Rank(input=tensor) for tensor in sent]
      with tf.control_dependencies(received):
        tf.no_op("last")
  return graph.as_graph_def()


def _chain(src: str, dst: str, size: int) -> tf.compat.v1.GraphDef:
  graph = tf.Graph()
  with graph.as_default():
    with tf.device(src):
      payload = tf.constant(np.ones(max(1, size // 4), np.float32))
      start = tf.constant(0)
    answer = start
    for _ in range(_CHAIN):
      with tf.device(src), tf.control_dependencies([answer]):
        sent = tf.identity(payload)
      with tf.device(dst):
        received = tf.raw_ops.Rank(input=sent)  # reads no element
      with tf.device(src):
        answer = tf.identity(received)
    with tf.device(src), tf.control_dependencies([answer]):
      tf.no_op("last")
  return graph.as_graph_def()
