"""A batch and its division into microbatches."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfplace.errors import ExtractionError
from tfplace.extraction.microbatches import states


class Parts:
  """A batch that is divided into microbatches.

  Attributes:
    examples: number n of examples; an int if known while tracing, else a
      tensor.
    count: number of microbatches, from 1 to n if n is known.
    sizes: [count] examples of each microbatch of the planned batch; None for
      equal ones. Another number of examples is divided in proportion.
    states: variables with one row per example, which are sliced like data.
    sources: tensors of the whole batch in their original form.
  """

  def __init__(
    self,
    data: Any,
    count: int,
    variables: Sequence[keras.Variable] = (),
    sources: Sequence[tf.Tensor] | None = None,
    sizes: Sequence[int] | None = None,
  ) -> None:
    unpacked = data_adapter_utils.unpack_x_y_sample_weight(data)
    self._data = unpacked
    self.states = variables
    self._rows = states.read(variables)
    flat = [t for t in tf.nest.flatten(unpacked) if t is not None]
    for tensor in flat:
      if not isinstance(tensor, tf.Tensor):
        raise ExtractionError(
          f"a batch with a {type(tensor).__name__} cannot be split"
        )
    rows = {t.shape[0] for t in flat}
    known = rows.pop() if len(rows) == 1 else None
    self.examples = tf.shape(flat[0])[0] if known is None else known
    self.count = count if known is None else max(1, min(count, known))
    self.sources = flat if sources is None else sources
    # If all sizes are 1, a larger batch has no proportion to follow.
    is_given = sizes is not None and sum(sizes) > len(sizes)
    self.sizes = sizes if is_given else None

  @property
  def tensors(self) -> list[tf.Tensor]:
    """Lists the tensors that are sliced, in the order of `inputs`."""
    flat = tf.nest.flatten((self._data, self._rows))
    return [tensor for tensor in flat if tensor is not None]

  @property
  def is_known(self) -> bool:
    """Returns whether sizes are known while tracing; then none is 0."""
    return isinstance(self.examples, int)

  def size(self, index: int) -> Any:
    """Returns the number of examples in a microbatch."""
    return self._begin(index + 1) - self._begin(index)

  def _begin(self, index: int) -> Any:
    """Returns the number of examples in all microbatches before one."""
    if self.sizes is not None:
      return self._given_begin(index)
    extra, least = self.examples % self.count, self.examples // self.count
    minimum = min if self.is_known else tf.minimum
    return index * least + minimum(index, extra)

  def _given_begin(self, index: int) -> Any:
    """Returns `_begin` for given sizes.

    A larger batch is divided in proportion. In a smaller one, each microbatch
    has an example if there are enough, and the rest is divided in proportion to
    the rest of the sizes.
    """
    sizes: Sequence[int] = self.sizes or ()
    count, total, before = len(sizes), sum(sizes), sum(sizes[:index])
    if self.is_known:
      if self.examples >= total:
        return self.examples * before // total
      if self.examples < count:
        return min(index, self.examples)
      rest = (self.examples - count) * (before - index)
      return index + rest // (total - count)
    examples = tf.cast(self.examples, tf.int64)
    smaller = index + (examples - count) * (before - index) // (total - count)
    smaller = tf.where(
      examples < count, tf.minimum(tf.cast(index, tf.int64), examples), smaller
    )
    begin = tf.where(examples >= total, examples * before // total, smaller)
    return tf.cast(begin, tf.int32)

  def part(self, index: int) -> Any:
    """Slices the data of a microbatch and its rows of the states.

    A microbatch without examples gets the last example of the batch, which is
    then ignored (`WholeBatch.present`), because many TensorFlow ops fail on
    empty tensors.
    """
    begin = self._begin(index)
    if self.is_known:
      end = begin + self.size(index)
    else:
      begin = tf.minimum(begin, self.examples - 1)
      end = begin + tf.maximum(self.size(index), 1)
    return tf.nest.map_structure(
      lambda t: None if t is None else t[begin:end], (self._data, self._rows)
    )

  def inputs(self, index: int) -> list[tf.Tensor]:
    """Lists the tensors of a microbatch.

    If sizes are not known while tracing, the last one is a scalar that says
    whether the microbatch has examples.
    """
    flat = [t for t in tf.nest.flatten(self.part(index)) if t is not None]
    return flat if self.is_known else [*flat, self.size(index) > 0]

  def structured(self, inputs: Sequence[tf.Tensor]) -> tuple[Any, Any, Any]:
    """Restores data and rows of states, and returns the scalar or None."""
    left = iter(inputs)
    data, rows = tf.nest.map_structure(
      lambda t: None if t is None else next(left), (self._data, self._rows)
    )
    return data, rows, next(left, None)

  def with_known_size(self, examples: int) -> "Parts":
    """Fixes the number of examples, which is checked at run time."""
    data = tf.nest.map_structure(
      lambda t: (
        None if t is None else tf.ensure_shape(t, (examples, *t.shape[1:]))
      ),
      self._data,
    )
    return Parts(data, self.count, sources=self.sources, sizes=self.sizes)

  def with_states(self, variables: Sequence[keras.Variable]) -> "Parts":
    """Returns the batch with additional per-example variables to slice."""
    return Parts(self._data, self.count, variables, self.sources, self.sizes)
