"""Losses of microbatches that add up to the loss of the whole batch.

While the step of a microbatch is traced, Keras' reductions divide by what the
whole batch counts instead of what the microbatch does: by elements where every
example counts, else (masks, sums of weights) by a placeholder that stands for
the sum of a recorded tensor over all microbatches.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import tensorflow as tf
from keras.src.losses import loss as keras_loss

from tfplace.errors import ExtractionError
from tfplace.extraction.microbatches import graph_copies

_MEANS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")
# Losses whose values for one example depend on the others of its batch.
_COMPARING = (keras.losses.Circle, keras.losses.Dice, keras.losses.Tversky)


@dataclasses.dataclass
class WholeBatch:
  """What a microbatch is a part of, while it is traced.

  Attributes:
    model: the model.
    size: examples of the microbatch; a number or a tensor.
    whole: examples of the batch; a number or a tensor.
    present: whether the microbatch has examples, a scalar; None: it has. If
      not, the one example that it computes with counts for nothing.
    with_regularization: whether `compute_loss` adds that of the weights.
    totals: pairs of a placeholder and the scalar of this microbatch whose sum
      over all microbatches takes its place.
    shown: pairs of a metric that shows the loss of one output, and the share
      of this microbatch.
  """

  model: keras.Model
  size: Any
  whole: Any
  present: tf.Tensor | None = None
  with_regularization: bool = False
  totals: list[tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(
    default_factory=list
  )
  shown: list[tuple[keras.Metric, tf.Tensor]] = dataclasses.field(
    default_factory=list
  )
  _shares: list[tf.Tensor] = dataclasses.field(default_factory=list)

  @contextlib.contextmanager
  def reductions(self) -> Iterator[None]:
    """Keras' losses are of the whole batch; metrics of them are recorded."""
    with contextlib.ExitStack() as stack:
      patch = mock.patch.object
      stack.enter_context(patch(keras_loss, "reduce_values", self._reduce))
      stack.enter_context(patch(keras_loss, "apply_mask", self._apply_mask))
      stack.enter_context(_replaced(self.model, "compute_loss", self._loss))
      for metric in getattr(self.model._compile_loss, "metrics", ()):
        record = functools.partial(self._record, metric)
        stack.enter_context(_replaced(metric, "update_state", record))
      yield

  @contextlib.contextmanager
  def metrics_kept(self) -> Iterator[None]:
    """Where the microbatch has no examples, metrics end as they began."""
    if self.present is None:
      yield
      return
    graph = tf.compat.v1.get_default_graph()
    variables = [v for m in self.model.metrics for v in m.variables]
    before = [tf.convert_to_tensor(v) for v in variables]
    yield
    assigned = {op.inputs[0].name for op in graph_copies.assignments(graph)}
    for variable, value in zip(variables, before, strict=True):
      if graph.capture(variable.value.handle).name in assigned:
        variable.assign(tf.where(self.present, variable, value))

  def _record(
    self, metric: keras.Metric, value: tf.Tensor, sample_weight: Any = None
  ) -> None:
    self.shown.append((metric, value))

  def _loss(
    self,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    training: bool = True,
  ) -> tf.Tensor:
    """As `keras.Model.compute_loss`, for the whole batch."""
    model, losses = self.model, []
    if model._compile_loss is not None:
      losses.append(model._compile_loss(y, y_pred, sample_weight))
    for layer in model._flatten_layers():
      losses += [self._additional(loss) for loss in layer._get_own_losses()]
    if self.with_regularization:
      weights = model._get_regularization_losses()
      losses += [self._additional(loss) for loss in weights]
    loss = tf.add_n([loss for loss in losses if loss is not None])
    self._shares.append(loss)
    return loss

  def share(self, loss: tf.Tensor) -> tf.Tensor:
    """The share of a loss made of what `compute_loss` gave and other terms.

    Raises:
      ExtractionError: a term is neither a sum nor a mean over examples.
    """
    if any(loss is known for known in self._shares):
      return loss
    kind, inputs = loss.op.type, list(loss.op.inputs)
    if kind == "Identity":
      return self.share(inputs[0])
    if kind == "Neg":
      return -self.share(inputs[0])
    if kind in ("Add", "AddV2", "AddN"):
      return tf.add_n([self.share(term) for term in inputs])
    if kind == "Sub":
      return self.share(inputs[0]) - self.share(inputs[1])
    constant = [tf.get_static_value(t) is not None for t in inputs]
    if kind == "Mul" and constant[0]:
      return inputs[0] * self.share(inputs[1])
    if kind == "Mul" and constant[1]:
      return inputs[1] * self.share(inputs[0])
    if kind == "RealDiv" and constant[1]:
      return self.share(inputs[0]) / inputs[1]
    return self._additional(loss)

  def _additional(self, loss: tf.Tensor) -> tf.Tensor:
    """The share of a sum or a mean over examples, or of what has none.

    Raises:
      ExtractionError: it is neither.
    """
    kind = _reduction(loss, self.size) if _is_of_batch(loss) else "mean"
    if kind == "sum":
      return self._counted(loss)
    if kind == "mean":
      share = tf.cast(self.size, loss.dtype) / tf.cast(self.whole, loss.dtype)
      return self._counted(loss * share)
    raise ExtractionError(
      f"the step of model {self.model.name!r} cannot be split: the loss"
      f" {loss.op.name!r} that is added is neither a sum nor a mean over"
      " examples",
      op=loss.op.name,
    )

  def _reduce(
    self,
    values: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
  ) -> tf.Tensor:
    """As `keras.src.losses.loss.reduce_values`, for the whole batch."""
    self._check_values(values, reduction)
    loss = self._counted(tf.reduce_sum(values))
    if reduction in _MEANS:
      weighted = reduction == "mean_with_sample_weight"
      if weighted and sample_weight is not None:
        count = self._total(tf.cast(tf.reduce_sum(sample_weight), loss.dtype))
      else:
        count = self._elements(values, loss.dtype)
      loss = tf.math.divide_no_nan(loss, count)
    return loss

  def _apply_mask(
    self,
    sample_weight: Any,
    mask: tf.Tensor | None,
    dtype: str,
    reduction: str,
  ) -> Any:
    """As `keras.src.losses.loss.apply_mask`, for the whole batch."""
    if mask is None:
      return sample_weight
    weight = tf.cast(mask, dtype)
    if reduction in ("mean", "sum_over_batch_size"):
      elements = self._elements(mask, weight.dtype)
      valid = self._total(tf.reduce_sum(weight))
      weight = weight * tf.math.divide_no_nan(elements, valid)
    if sample_weight is None:
      return weight
    sample_weight = tf.cast(sample_weight, dtype)
    weight, sample_weight = keras_loss.squeeze_or_expand_to_same_rank(
      weight, sample_weight
    )
    return sample_weight * weight

  def _total(self, tensor: tf.Tensor) -> tf.Tensor:
    """A placeholder for the sum of a scalar over all microbatches."""
    whole = tf.compat.v1.placeholder(tensor.dtype, (), name="of_whole_batch")
    self.totals.append((whole, self._counted(tensor)))
    return whole

  def _counted(self, scalar: tf.Tensor) -> tf.Tensor:
    """The scalar, or 0 of a microbatch without examples."""
    if self.present is None:
      return scalar
    return tf.where(self.present, scalar, tf.zeros_like(scalar))

  def _elements(self, values: tf.Tensor, dtype: Any) -> tf.Tensor:
    """Elements of a tensor [examples, ...] for the whole batch."""
    each = tf.reduce_prod(tf.shape(values)[1:])
    return tf.cast(each, dtype) * tf.cast(self.whole, dtype)

  def _check_values(self, values: tf.Tensor, reduction: str | None) -> None:
    name = tf.get_current_name_scope().rpartition("/")[2]
    rows = values.shape[0] if values.shape.rank else None
    wrong = values.shape.rank == 0 or (
      rows is not None and isinstance(self.size, int) and rows != self.size
    )
    if wrong or reduction in (None, "none"):
      why = "has no reduction" if not wrong else "gives no value per example"
      raise ExtractionError(
        f"the step of model {self.model.name!r} cannot be split: its loss"
        f" {name!r} {why} (shape {values.shape}, reduction {reduction!r})"
      )


def check_losses(model: keras.Model) -> None:
  """Refuses losses that are no sum or mean over examples.

  Raises:
    ExtractionError: names the loss.
  """
  losses = getattr(model._compile_loss, "_flat_losses", None)
  for loss in tf.nest.flatten(losses or []):
    own = getattr(loss, "fn", loss)
    if isinstance(loss, _COMPARING):
      why = "compares examples with each other"
    elif (
      isinstance(loss, keras.losses.Loss)
      and type(loss).__call__ is not keras.losses.Loss.__call__
    ):
      why = "reduces its values by itself"
    else:
      continue
    raise ExtractionError(
      f"the step of model {model.name!r} cannot be split: its loss"
      f" {getattr(own, '__name__', type(own).__name__)!r} {why}"
    )


@contextlib.contextmanager
def _replaced(owner: Any, name: str, method: Any) -> Iterator[None]:
  """Inside, the object has the method; past Keras' tracking of attributes."""
  before = vars(owner).get(name)
  object.__setattr__(owner, name, method)
  try:
    yield
  finally:
    if before is None:
      object.__delattr__(owner, name)
    else:
      object.__setattr__(owner, name, before)


def _is_of_batch(loss: tf.Tensor) -> bool:
  """Whether a tensor depends on the batch, and not on variables alone."""
  captured = {inner.name for _, inner in loss.graph.captures}
  seen: set[str] = set()
  waiting = [loss.op]
  while waiting:
    op = waiting.pop()
    if op.name in seen:
      continue
    seen.add(op.name)
    if op.type == "Placeholder" and op.outputs[0].name not in captured:
      return True
    waiting += [tensor.op for tensor in op.inputs]
  return False


def _reduction(loss: tf.Tensor, size: Any) -> str | None:
  """ "sum" or "mean" of a scalar that is one over examples; None: neither.

  Scaled by constants and added up it still is.
  """
  op = loss.op
  inputs = list(op.inputs)
  if op.type in ("Sum", "Mean"):
    rows = inputs[0].shape[0] if inputs[0].shape.rank else None
    axes = tf.get_static_value(inputs[1])
    over = axes is not None and 0 in axes.reshape(-1).tolist()
    fits = rows == size or rows is None
    if inputs[0].shape.rank and over and fits:
      return op.type.lower()
  if op.type in ("Identity", "Neg", "Cast"):
    return _reduction(inputs[0], size)
  if op.type in ("DivNoNan", "RealDiv") and _is_size(inputs[1], size):
    return "mean" if _reduction(inputs[0], size) == "sum" else None
  if op.type in ("Mul", "RealDiv"):
    constant = [tf.get_static_value(t) is not None for t in inputs]
    if any(constant) and (op.type == "Mul" or constant[1]):
      return _reduction(inputs[constant[0]], size)
  if op.type in ("Add", "AddV2", "Sub"):
    first, second = (_reduction(t, size) for t in inputs)
    return first if first == second else None
  if op.type in ("Sum", "Mean") and inputs[0].shape.rank == 0:
    return _reduction(inputs[0], size)
  return None


def _is_size(tensor: tf.Tensor, size: Any) -> bool:
  """Whether a scalar is the number of examples."""
  value = tf.get_static_value(tensor)
  if value is not None:
    return bool(value == size)
  while tensor.op.type in ("Cast", "StridedSlice", "Identity"):
    tensor = tensor.op.inputs[0]
  return tensor.op.type == "Shape"
