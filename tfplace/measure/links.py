"""Bandwidth and latency of links, from real transfers.

For each ordered pair of devices and several sizes, a chain of tensors goes
from the one to the other, each sent when the answer to the one before (a
scalar) has come back. What such a chain takes per transfer is fitted by
`latency + bytes / bandwidth`.
"""

import statistics
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.graph.cluster import Link
from tfplace.measure import messages, runtime

SIZES_BYTES = (4, 16 << 10, 256 << 10, 1 << 20, 4 << 20)
_CHAIN = 8  # transfers in one step
_STEPS = 5
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
        latency, bandwidth = fit_link(sizes_bytes, times)
        result.append(
          Link(
            src,
            dst,
            bandwidth_bytes_per_us=bandwidth,
            latency_us=latency,
            extra={"measured_us": _by_size(sizes_bytes, times)},
          )
        )
  return tuple(result)


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


def _chain_us(runner: runtime.Runtime, src: str, dst: str, size: int) -> float:
  request = messages.StepRequest(
    graph_def=_chain(src, dst, size).SerializeToString(),
    initializers=(),
    initializer_feeds=(),
    fetches=(),
    targets=("last",),
    warmup=2,
    steps=_STEPS,
    traced_steps=0,
  )
  return statistics.median(runner.run(request, _TIMEOUT_S).step_us)


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


def fit_link(
  sizes_bytes: Sequence[float], times_us: Sequence[float]
) -> tuple[float, float]:
  """Latency (us) and bandwidth (bytes/us) that best explain transfers.

  Least squares of the relative errors, both figures kept above 0.

  Args:
    sizes_bytes: [n] sizes, at least two different ones.
    times_us: [n] time of each, above 0.
  """
  from scipy import optimize

  sizes = np.asarray(sizes_bytes, np.float64)
  times = np.asarray(times_us, np.float64)
  weighted = np.stack([np.ones_like(sizes), sizes], 1) / times[:, None]
  (latency, per_byte), _ = optimize.nnls(weighted, np.ones_like(times))
  return float(latency), float(1.0 / max(per_byte, 1e-9))
