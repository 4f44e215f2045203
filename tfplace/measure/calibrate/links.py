"""Microbenchmark of messages between two devices.

Four patterns separate the costs of a transfer (`fit.Timed`), each alternating
with the same ops without messages. All graphs end in the node "last".
"""

import dataclasses
import itertools
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.graph.cluster import Link
from tfplace.measure.calibrate import fit
from tfplace.measure.local import runtime
from tfplace.measure.session import messages

LAST = "last"
TIMEOUT_S = 60.0
_PATTERNS = ("trip", "send", "recv", "burst")


# Bytes of a message, and the largest number of messages in a step.
_LOADS = (
  *((4, 32), (16 << 10, 32), (128 << 10, 16)),
  *((512 << 10, 8), (1 << 20, 8)),
)
_HOLDOUT = 512 << 10  # bytes of messages that validate the fit, unused in it
_TRIPS = 8  # most round trips in one step
SIDE = 128  # rows of the matrices that keep a device busy
_PRODUCTS = 100  # of such matrices
_ROUNDS = 3  # repetitions of a pattern, of which the fastest counts
_PATTERN_S = 1.0  # after which no further round of a pattern starts
_STEPS = 5  # timed, per round
_LONG_US = 1e6  # limit of the time that the messages of a step take


def empty_step(device: str) -> bytes:
  """Builds a step without work on `device`."""
  with tf.Graph().as_default() as graph, tf.device(device):
    tf.no_op(LAST)
  return graph.as_graph_def().SerializeToString()


def round_trips(src: str, dst: str, size: int, count: int) -> bytes:
  """Builds a step in which a tensor moves `count` times between two devices."""
  with tf.Graph().as_default() as graph:
    with tf.device(src):
      tensor = _payload(size)
    for i in range(count):
      with tf.device(src if i % 2 else dst):
        tensor = tf.identity(tensor)
    with tf.device(src), tf.control_dependencies([tensor]):
      tf.no_op(LAST)
  return graph.as_graph_def().SerializeToString()


def stream(
  src: str, dst: str, busy: str | None, size: int, count: int, crosses: bool
) -> bytes:
  """Builds a step of independent tensors, made at `src` and read at `dst`.

  Args:
    busy: device that computes matrix products at the same time.
    size: bytes of a tensor.
    crosses: whether the tensors made are those read; if not, the ops are the
      same but no tensor is transferred.
  """
  with tf.Graph().as_default() as graph:
    products = {busy: _products(busy)} if busy else {}
    made = _tensors(src, size, count, products.get(src, []))
    local = _tensors(dst, size, count, [])
    with tf.device(dst):
      # Rank reads no elements, so only the transfer takes time.
      ranks = [
        tf.raw_ops.Rank(input=tensor) for tensor in (made if crosses else local)
      ]
      ends = [*ranks, *local, *products.get(dst, [])]
      with tf.control_dependencies(ends):
        there = tf.no_op()
    with tf.device(src):
      ends = [there, *made, *products.get(src, [])]
      with tf.control_dependencies(ends):
        tf.no_op(LAST)
  return graph.as_graph_def().SerializeToString()


def _tensors(
  device: str, size: int, count: int, after: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
  """Makes tensors spread over the first half of `after`, to arrive in time."""
  result = []
  with tf.device(device):
    payload = _payload(size)
    for i in range(count):
      gates = [after[i * len(after) // (2 * count)]] if after else []
      with tf.control_dependencies(gates):
        result.append(tf.identity(payload))
  return result


def _payload(size: int) -> tf.Tensor:
  return tf.constant(np.ones(max(1, size // 4), np.float32))


def _products(device: str) -> list[tf.Tensor]:
  with tf.device(device):
    matrix = tf.constant(np.full((SIDE, SIDE), 1 / SIDE, np.float32))
    result = [tf.matmul(matrix, matrix)]
    while len(result) < _PRODUCTS:
      result.append(tf.matmul(result[-1], matrix))
  return result


def loopback_links(
  runner: runtime.Runtime, devices: Sequence[str]
) -> tuple[Link, ...]:
  """Measures one link for all pairs of equal devices on one host."""
  if len(devices) < 2:
    return ()
  link = measure(runner, *devices[:2])
  return tuple(
    dataclasses.replace(link, src=src, dst=dst)
    for src, dst in itertools.permutations(devices, 2)
  )


def measure(runner: runtime.Runtime, src: str, dst: str) -> Link:
  """Measures the link from `src` to `dst`.

  `extra["held_out_error"]` has, by pattern, the relative error of the time that
  messages of a size not used in the fit add to a step.

  Raises:
    ChildError: a transfer failed.
  """
  timed = _timed(runner, src, dst)
  costs = fit.fit_link([t for t in timed if t.size != _HOLDOUT])
  errors = {
    t.pattern: (t.expected_us(costs) - t.alone_us)
    / max(t.step_us - t.alone_us, 1e-3)
    - 1.0
    for t in timed
    if t.size == _HOLDOUT
  }
  link = costs.link(src, dst)
  return dataclasses.replace(link, extra={"held_out_error": errors})


def _timed(runner: runtime.Runtime, src: str, dst: str) -> list[fit.Timed]:
  result: list[fit.Timed] = []
  expected_us = 1.0  # time of a message of this size
  for (size, most), (larger, _) in itertools.pairwise((*_LOADS, _LOADS[-1])):
    count = min(most, int(_LONG_US / expected_us))
    if count < 2:
      break
    # On a network, only round trips are informative; see `fit.fit_link`.
    is_network = bool(result) and result[0].each_us > fit.NETWORK_US
    for pattern in _PATTERNS[:1] if is_network else _PATTERNS:
      result.append(_time(runner, src, dst, pattern, size, count))
    expected_us = max(result[-1].each_us, 1.0)
    if size > _LOADS[0][0]:  # the smallest size says nothing about the rate
      expected_us *= larger / size
  return result


def _time(
  runner: runtime.Runtime,
  src: str,
  dst: str,
  pattern: str,
  size: int,
  count: int,
) -> fit.Timed:
  if pattern == "trip":
    count = min(count, _TRIPS)
    graphs = [round_trips(src, end, size, count) for end in (src, dst)]
  else:
    busy = {"send": src, "recv": dst}.get(pattern)
    graphs = [
      stream(src, dst, busy, size, count, crosses) for crosses in (False, True)
    ]
  began = time.monotonic()
  rounds: list[list[float]] = []
  while len(rounds) < _ROUNDS:
    rounds.append([_step_us(runner, graph) for graph in graphs])
    if time.monotonic() - began > _PATTERN_S:
      break  # a slow link, so load on the host matters little
  alone_us, step_us = (min(column) for column in zip(*rounds, strict=True))
  return fit.Timed(pattern, size, count, alone_us, step_us)


def _step_us(runner: runtime.Runtime, graph_def: bytes) -> float:
  """Returns the fastest step time, the least affected by other processes."""
  return min(runner.run(request(graph_def, _STEPS), TIMEOUT_S).step_us)


def request(graph_def: bytes, steps: int) -> messages.StepRequest:
  """Requests steps of a graph that ends in the node "last"."""
  return messages.StepRequest(
    graph_def=graph_def,
    initializers=(),
    initializer_feeds=(),
    fetches={},
    targets=(LAST,),
    warmup=2,
    steps=steps,
    traced_steps=0,
    phase_s=TIMEOUT_S,
  )
