"""The graphs whose steps time transfers. Every one ends in the node "last"."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

LAST = "last"
_SIDE = 128  # of the matrices that keep a device busy
_PRODUCTS = 100


def nothing(device: str) -> bytes:
  """A step that does nothing on `device`."""
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
