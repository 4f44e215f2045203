"""Layers of the encoder: GraphSAGE, segment attention, blocks.

To save memory, layers run on one block of rows at a time, and gradients
recompute the blocks (Chen et al., 2016, arXiv 1604.06174). Training process
only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfplace.learned.train import tfgnn

NODES = "decisions"
FEEDS = "feeds"  # link from producer to consumer
FED_BY = "fed_by"  # the same link in the other direction
DIRECTIONS = (FEEDS, FED_BY)
BLOCK = 1024  # decisions per block
# (first row, a block of each of `rows`, shared) -> block of the result.
BlockFunction = Callable[
  [tf.Tensor, Sequence[tf.Tensor], Sequence[tf.Tensor]], tf.Tensor
]


def whole(
  function: BlockFunction,
  rows: Sequence[tf.Tensor],
  shared: Sequence[tf.Tensor],
  size: int,
  width: int | None = None,
) -> tf.Tensor:
  """Computes `forward` on all rows at once, without a loop."""
  del size
  return tf.ensure_shape(function(tf.constant(0), rows, shared), [None, width])


def forward(
  function: BlockFunction,
  rows: Sequence[tf.Tensor],
  shared: Sequence[tf.Tensor],
  size: int,
  width: int | None = None,
) -> tf.Tensor:
  """Applies `function` to blocks of `size` rows; returns [N, width].

  Args:
    function: Applied to each block. Gradients flow only into its arguments, not
      into other tensors that it reads.
    rows: At least one tensor [N, ...] to divide into blocks.
    size: Rows per block; the last block can be smaller.
    width: Width of the result, if known.
  """
  count = tf.shape(rows[0])[0]

  def body(start: tf.Tensor, parts: tf.TensorArray) -> tuple:
    block = [row[start : start + size] for row in rows]
    result = function(start, block, shared)
    return start + size, parts.write(start // size, result)

  parts = tf.TensorArray(
    tf.float32, size=(count + size - 1) // size, infer_shape=False
  )
  _, parts = tf.while_loop(
    lambda start, _: start < count, body, (0, parts), parallel_iterations=1
  )
  return tf.ensure_shape(parts.concat(), [None, width])


def recomputed(
  function: BlockFunction,
  rows: Sequence[tf.Tensor],
  shared: Sequence[tf.Tensor],
  size: int,
  width: int | None = None,
) -> tf.Tensor:
  """Computes `forward` with gradients that recompute every block.

  The layers that `function` calls must already have their variables.
  """
  number = len(rows)

  @tf.custom_gradient
  def run(*tensors: tf.Tensor) -> tuple:
    mine, others = tensors[:number], tensors[number:]

    def gradient(
      upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
    ) -> tuple:
      of_rows, sums = _backward(
        function, mine, others, size, upstream, variables
      )
      given = (*of_rows, *sums[: len(others)])
      return (given, sums[len(others) :]) if variables else given

    return forward(function, mine, others, size, width), gradient

  return run(*rows, *shared)


def _backward(
  function: BlockFunction,
  rows: Sequence[tf.Tensor],
  shared: Sequence[tf.Tensor],
  size: int,
  upstream: tf.Tensor,
  variables: Sequence[tf.Variable],
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
  count = tf.shape(rows[0])[0]
  added = [*shared, *variables]

  def body(start: tf.Tensor, parts: list, sums: list) -> tuple:
    block = [row[start : start + size] for row in rows]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch([*block, *added])
      result = function(start, block, shared)
    found = tape.gradient(
      result,
      [*block, *added],
      upstream[start : start + size],
      unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    at = start // size
    parts = [p.write(at, f) for p, f in zip(parts, found, strict=False)]
    sums = [s + f for s, f in zip(sums, found[len(rows) :], strict=True)]
    return start + size, parts, sums

  blocks = (count + size - 1) // size
  parts = [
    tf.TensorArray(tf.float32, size=blocks, infer_shape=False) for _ in rows
  ]
  sums = [tf.zeros_like(tensor) for tensor in added]
  _, parts, sums = tf.while_loop(
    lambda start, *_: start < count,
    body,
    (0, parts, sums),
    parallel_iterations=1,
  )
  of_rows = [
    tf.ensure_shape(part.concat(), row.shape)
    for part, row in zip(parts, rows, strict=True)
  ]
  return of_rows, sums


class MaxPoolConv(tfgnn.keras.layers.AnyToAnyConvolutionBase):
  """Max pooling aggregator of GraphSAGE, as used by GDP.

  Computes the maximum over neighbors u of sigmoid(W [h_u, e_uv] + b), or 0
  without neighbors (Hamilton et al. 2017, eq. 3).
  """

  def __init__(self, units: int, **kwargs: Any) -> None:
    super().__init__(
      receiver_tag=tfgnn.TARGET,
      receiver_feature=None,
      sender_node_feature=tfgnn.HIDDEN_STATE,
      sender_edge_feature=tfgnn.HIDDEN_STATE,
      **kwargs,
    )
    self._of_node = tf.keras.layers.Dense(units, use_bias=False)
    self._of_edge = tf.keras.layers.Dense(units)

  def convolve(
    self,
    *,
    sender_node_input: tf.Tensor,
    sender_edge_input: tf.Tensor,
    broadcast_from_sender_node: Callable[[tf.Tensor], tf.Tensor],
    pool_to_receiver: Callable[..., tf.Tensor],
    **unused: Any,
  ) -> tf.Tensor:
    """Aggregates [num_links] messages to [num_decisions, units]."""
    # Computes W h_u once per node, not once per link.
    message = broadcast_from_sender_node(self._of_node(sender_node_input))
    message = tf.sigmoid(message + self._of_edge(sender_edge_input))
    return pool_to_receiver(message, reduce_type="max_no_inf")


class NextState(tf.keras.layers.Layer):
  """LN(h + relu(W [h, pooled in, pooled out])), the update of GraphSAGE."""

  def __init__(self, units: int) -> None:
    super().__init__()
    self._dense = tf.keras.layers.Dense(units, activation="relu")
    self._norm = tf.keras.layers.LayerNormalization()

  def call(self, inputs: tuple[Any, ...]) -> tf.Tensor:
    """Maps [N, units] states and pooled messages to [N, units]."""
    state, messages, _ = inputs
    joined = tf.concat([state, *messages.values()], axis=-1)
    return self._norm(state + self._dense(joined))


def sage_layer(units: int) -> tf.keras.layers.Layer:
  """Builds one round of message passing in both edge directions."""
  return tfgnn.keras.layers.GraphUpdate(
    node_sets={
      NODES: tfgnn.keras.layers.NodeSetUpdate(
        {direction: MaxPoolConv(units) for direction in DIRECTIONS},
        NextState(units),
      )
    }
  )


def graph_tensor(
  state: tf.Tensor, edge: tf.Tensor, src: tf.Tensor, dst: tf.Tensor
) -> tfgnn.GraphTensor:
  """Builds a bidirectional graph from [N, units] states, [E, F] links."""

  def edge_set(source: tf.Tensor, target: tf.Tensor) -> tfgnn.EdgeSet:
    return tfgnn.EdgeSet.from_fields(
      sizes=tf.shape(src)[:1],
      features={tfgnn.HIDDEN_STATE: edge},
      adjacency=tfgnn.Adjacency.from_indices(
        source=(NODES, source), target=(NODES, target)
      ),
    )

  return tfgnn.GraphTensor.from_pieces(
    node_sets={
      NODES: tfgnn.NodeSet.from_fields(
        sizes=tf.shape(state)[:1], features={tfgnn.HIDDEN_STATE: state}
      )
    },
    edge_sets={FEEDS: edge_set(src, dst), FED_BY: edge_set(dst, src)},
  )


class SegmentAttention(tf.keras.layers.Layer):
  """Attention over segments with the previous segment as memory.

  Follows Transformer-XL (Dai et al. 2019) as used by GDP: a segment attends to
  itself and to the cached states of the previous segment, without gradient and
  without positional encoding. `gate` is GDP's superposition, which multiplies
  the inputs of the dense layers. The cost is linear in N.
  """

  def __init__(self, units: int, heads: int, segment: int) -> None:
    super().__init__()
    self._units, self._heads, self._segment = units, heads, segment
    self._query = tf.keras.layers.Dense(units, use_bias=False)
    self._key_value = tf.keras.layers.Dense(2 * units, use_bias=False)
    self._out = tf.keras.layers.Dense(units)
    self._wide = tf.keras.layers.Dense(2 * units, activation="relu")
    self._narrow = tf.keras.layers.Dense(units)
    self._norms = [tf.keras.layers.LayerNormalization() for _ in range(2)]

  def call(
    self, state: tf.Tensor, gate: tf.Tensor, run: Callable = forward
  ) -> tf.Tensor:
    """Maps [N, units] states in topological order to [N, units].

    `gate` is [units]; `run` is `forward`, `whole` or `recomputed`.
    """
    size = self._segment
    cached = tf.stop_gradient(tf.pad(state * gate, [[size, 0], [0, 0]]))

    def attend(start: tf.Tensor, rows: Any, shared: Any) -> tf.Tensor:
      return self._segments(start, rows[0], shared[0], cached)

    block = size * max(1, BLOCK // size)
    return run(attend, [state], [gate], block, self._units)

  def _segments(
    self, start: tf.Tensor, state: tf.Tensor, gate: tf.Tensor, cached: tf.Tensor
  ) -> tf.Tensor:
    """Processes whole segments from row `start`; `cached` is [size + N]."""
    size, units = self._segment, self._units
    count = tf.shape(state)[0]
    segments = (count + size - 1) // size
    padded = tf.pad(state * gate, [[0, segments * size - count], [0, 0]])
    now = tf.reshape(padded, [segments, size, units])
    before = cached[start : start + segments * size]
    before = tf.reshape(before, [segments, size, units])
    context = tf.concat([before, now], axis=1)
    # Position of each key in the block. Keys before the start of the sequence
    # and past its end are padding.
    at = tf.range(segments)[:, None] * size + tf.range(-size, size)[None]
    valid = (at + start >= 0) & (at < count)
    mixed = self._attend(now, context, valid)
    mixed = tf.reshape(mixed, [-1, units])[:count]
    state = self._norms[0](state + self._out(mixed))
    return self._norms[1](state + self._narrow(self._wide(state * gate)))

  def _attend(
    self, now: tf.Tensor, context: tf.Tensor, valid: tf.Tensor
  ) -> tf.Tensor:
    heads, width = self._heads, self._units // self._heads
    shape = [tf.shape(now)[0], -1, heads, width]
    query = tf.reshape(self._query(now), shape)
    key, value = tf.split(self._key_value(context), 2, axis=-1)
    key, value = tf.reshape(key, shape), tf.reshape(value, shape)
    score = tf.einsum("sqhw,skhw->shqk", query, key) * width**-0.5
    score = tf.where(valid[:, None, None], score, -1e9)
    mixed = tf.einsum("shqk,skhw->sqhw", tf.nn.softmax(score), value)
    return tf.reshape(mixed, [tf.shape(now)[0], -1, self._units])
