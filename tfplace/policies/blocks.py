"""Layers over a long sequence, a block of its rows at a time.

A graph of 50,000 ops makes gigabytes of intermediate values, most of them in
layers that look at few rows at once. Here a block's values live only while it
is computed; for gradients they are computed again, and the blocks' gradients
are added up (Chen et al. 2016, arXiv 1604.06174).
"""

from collections.abc import Callable, Sequence

from tfplace.policies import keras2

keras2.check_training_process()

import tensorflow as tf  # noqa: E402

# (first row, a block of each of `rows`, shared) -> a block of the result.
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
  """As `forward`, all rows at once, without a loop."""
  del size
  return tf.ensure_shape(function(tf.constant(0), rows, shared), [None, width])


def forward(
  function: BlockFunction,
  rows: Sequence[tf.Tensor],
  shared: Sequence[tf.Tensor],
  size: int,
  width: int | None = None,
) -> tf.Tensor:
  """[N, width] result of `function` on blocks of `size` rows, joined.

  Args:
    function: may read whole tensors besides its arguments, into which no
      gradient flows.
    rows: [N, ...] each; at least one.
    shared: of which every block gets the whole.
    size: rows per block; the last block may have fewer.
    width: of the result, where it is known.
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
  """As `forward`; a gradient computes every block again.

  The layers that `function` calls must have their variables already.
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
  """Gradients of the rows, and of what is shared and the variables."""
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
