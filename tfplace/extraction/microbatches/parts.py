"""A batch, and how it is cut into the parts that microbatches work on."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfplace.errors import ExtractionError
from tfplace.extraction.microbatches import states


class Parts:
  """The batch, and how it is cut.

  Attributes:
    examples: n; a number where it is known while tracing, else a tensor.
    count: parts; a batch that is known to have less examples has less parts.
    states: variables with a row for each example, which are cut as data is.
    sources: tensors of the whole batch as they were given.
  """

  def __init__(
    self,
    data: Any,
    count: int,
    variables: Sequence[keras.Variable] = (),
    sources: Sequence[tf.Tensor] | None = None,
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

  @property
  def tensors(self) -> list[tf.Tensor]:
    """The tensors that are cut, in the order of `inputs`."""
    flat = tf.nest.flatten((self._data, self._rows))
    return [tensor for tensor in flat if tensor is not None]

  @property
  def is_known(self) -> bool:
    """Whether sizes are known while tracing; then no part is empty."""
    return isinstance(self.examples, int)

  def size(self, index: int) -> Any:
    """Examples of a microbatch."""
    extra = self.examples % self.count
    if self.is_known:
      return self.examples // self.count + (index < extra)
    return self.examples // self.count + tf.cast(index < extra, tf.int32)

  def part(self, index: int) -> Any:
    """The data of a microbatch, and its rows of the states.

    One without examples gets the last of the batch, for which nothing counts
    (`WholeBatch.present`): many of TensorFlow's ops fail on none at all.
    """
    extra, least = self.examples % self.count, self.examples // self.count
    if self.is_known:
      begin = index * least + min(index, extra)
      end = begin + self.size(index)
    else:
      begin = index * least + tf.minimum(index, extra)
      begin = tf.minimum(begin, self.examples - 1)
      end = begin + tf.maximum(self.size(index), 1)
    return tf.nest.map_structure(
      lambda t: None if t is None else t[begin:end], (self._data, self._rows)
    )

  def inputs(self, index: int) -> list[tf.Tensor]:
    """The tensors of a microbatch; last, whether it has examples, if that is
    not known while tracing."""
    flat = [t for t in tf.nest.flatten(self.part(index)) if t is not None]
    return flat if self.is_known else [*flat, self.size(index) > 0]

  def structured(self, inputs: Sequence[tf.Tensor]) -> tuple[Any, Any, Any]:
    """Of what `inputs` gives: data, rows of states, and the scalar or None."""
    left = iter(inputs)
    data, rows = tf.nest.map_structure(
      lambda t: None if t is None else next(left), (self._data, self._rows)
    )
    return data, rows, next(left, None)

  def with_known_size(self, examples: int) -> "Parts":
    """The same batch, which must have so many examples when it runs."""
    data = tf.nest.map_structure(
      lambda t: (
        None if t is None else tf.ensure_shape(t, (examples, *t.shape[1:]))
      ),
      self._data,
    )
    return Parts(data, self.count, sources=self.sources)

  def with_states(self, variables: Sequence[keras.Variable]) -> "Parts":
    """The same batch, with which these variables are cut."""
    return Parts(self._data, self.count, variables, self.sources)
