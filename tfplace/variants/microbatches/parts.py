"""A batch and its division into microbatches."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfplace.errors import ExtractionError
from tfplace.graph.microbatches import VariantConfig
from tfplace.variants.microbatches import states

# Maps `x, y, sample_weight` of a microbatch to its loss.
Forward: TypeAlias = Callable[[Any, Any, Any], tf.Tensor]


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
    *,
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
    """Returns the number of examples in all microbatches before one.

    A batch larger than the planned one is divided in proportion to its sizes.
    In a smaller one, each microbatch has an example if there are enough, and
    the rest is divided in proportion to the rest of the sizes.
    """
    library = np if self.is_known else tf
    examples, count = self.examples, self.count
    if self.sizes is None:
      least, extra = examples // count, examples % count
      begin = index * least + library.minimum(extra, index)
      return int(begin) if self.is_known else begin
    if not self.is_known:
      examples = tf.cast(examples, tf.int64)
    total, before = sum(self.sizes), sum(self.sizes[:index])
    rest = (examples - count) * (before - index) // (total - count)
    begin = library.where(
      examples < count, library.minimum(examples, index), index + rest
    )
    begin = library.where(examples >= total, examples * before // total, begin)
    return int(begin) if self.is_known else tf.cast(begin, tf.int32)

  def inputs(self, index: int) -> list[tf.Tensor]:
    """Slices the data of a microbatch and its rows of the states.

    If sizes are not known while tracing, the last tensor is a scalar that says
    whether the microbatch has examples. One without examples gets the last
    example of the batch, which is then ignored (`WholeBatch.present`), because
    many TensorFlow ops fail on empty tensors.
    """
    begin = self._begin(index)
    if self.is_known:
      end = begin + self.size(index)
      return [tensor[begin:end] for tensor in self.tensors]
    begin = tf.minimum(begin, self.examples - 1)
    end = begin + tf.maximum(self.size(index), 1)
    slices = [tensor[begin:end] for tensor in self.tensors]
    return [*slices, self.size(index) > 0]

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
    return Parts(
      self._data,
      self.count,
      variables=variables,
      sources=self.sources,
      sizes=self.sizes,
    )


class Division(NamedTuple):
  """A training step to divide: its model, its batch and the request.

  `forward` computes the loss of a microbatch; None is Keras' own.
  """

  model: keras.Model
  parts: Parts
  config: VariantConfig
  forward: Forward | None = None
