"""The graphs of a training run as constants, kept once and found by number.

A trajectory then carries a graph's number, not the graph: methods that replay
whole graphs spend their memory on copies.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfplace.learned.gdp.features import Features

_PER_DECISION = ("type_id", "node")
_PER_LINK = ("edge_src", "edge_dst", "edge")
_PER_DEVICE = ("device",)
_PER_PAIR = ("pair", "allowed")
LARGE = 8192  # decisions above which gradients save memory rather than time


class GraphBank(tf.Module):
  """Features of G graphs, joined end to end.

  Attributes:
    num_graphs: G.
    max_decisions: most decisions of any graph: the length of an action.
    max_devices: most devices of any graph.
    is_large: whether gradients recompute what they need (policies/blocks).
    num_decisions: [G] int32.
    num_devices: [G] int32.
    summary: [G, S] float32, what the value network sees of a graph.
  """

  def __init__(self, graphs: Sequence[Features]) -> None:
    super().__init__(name="graph_bank")
    self.num_graphs = len(graphs)
    decisions = np.array([g.num_decisions for g in graphs], np.int32)
    devices = np.array([g.num_devices for g in graphs], np.int32)
    self.max_decisions = int(decisions.max())
    self.max_devices = int(devices.max())
    self.is_large = self.max_decisions > LARGE
    self.num_decisions = tf.constant(decisions)
    self.num_devices = tf.constant(devices)
    self.summary = tf.constant(np.stack([_summary(g) for g in graphs]))
    sizes = {
      _PER_DECISION: decisions,
      _PER_LINK: np.array([len(g.edge_src) for g in graphs]),
      _PER_DEVICE: devices,
      _PER_PAIR: decisions * devices,
    }
    self._rows: dict[str, tf.Tensor] = {}
    self._bounds: dict[str, tf.Tensor] = {}
    for fields, counts in sizes.items():
      bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
      for field in fields:
        arrays = [getattr(g, field) for g in graphs]
        if fields is _PER_PAIR:
          arrays = [a.reshape(-1, *a.shape[2:]) for a in arrays]
        self._rows[field] = tf.constant(np.concatenate(arrays))
        self._bounds[field] = tf.constant(bounds)

  def get(self, graph: tf.Tensor) -> dict[str, tf.Tensor]:
    """Scalar graph number -> `Features.tensors()` of that graph."""
    result = {}
    for field, rows in self._rows.items():
      bounds = self._bounds[field]
      result[field] = rows[bounds[graph] : bounds[graph + 1]]
    shape = [self.num_decisions[graph], self.num_devices[graph]]
    for field in _PER_PAIR:
      tail = result[field].shape[1:]
      result[field] = tf.reshape(result[field], [*shape, *tail])
    return result


def _summary(graph: Features) -> np.ndarray:
  """[S] float32: means over decisions and devices, and the two sizes."""
  sizes = [np.log(graph.num_decisions) / 10, graph.num_devices / 8]
  parts = [graph.node.mean(axis=0), graph.device.mean(axis=0), sizes]
  return np.concatenate(parts).astype(np.float32)
