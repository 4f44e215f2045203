"""The gradients of a `train_step` of a model's own, which tfplace can split."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction.microbatches import split_step
from tfplace.extraction.microbatches.forward import forward_and_backward


def split_gradients(
  model: keras.Model,
  data: Any,
  forward: Callable[[Any, Any, Any], tf.Tensor] | None = None,
) -> tuple[tf.Tensor, list[Any]]:
  """Loss and gradients of a batch, for a `train_step` of the model's own.

  In a step that is split into microbatches it computes them so; in any other
  it is Keras' `train_step` without the update. The metric of the loss and the
  compiled metrics are updated. Call it once a step, and apply the gradients:

    def train_step(self, data):
      loss, gradients = tfplace.split_gradients(self, data)
      self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
      return self.get_metrics_result()

  Args:
    model: the model itself.
    data: what `train_step` is given: `x`, `(x, y)` or `(x, y, sample_weight)`.
    forward: `x, y, sample_weight` of a part of the batch -> its loss, a scalar:
      calls the model and `compute_loss`, may add sums and means over examples
      or terms of weights alone, and updates the metrics that it wants. None:
      as Keras' `train_step`, compiled metrics included.

  Returns:
    The loss of the batch, and by trainable weight its gradient: a tensor,
    `tf.IndexedSlices` or None, scaled where the optimizer scales losses.

  Raises:
    ExtractionError: no compiled model, or not the one whose step is traced; a
      loss that is no scalar tensor of floats or that no weight changes; or
      what is split would not compute the same; says why.
  """
  if not isinstance(model, keras.Model):
    raise ExtractionError(
      "split_gradients takes the model whose train_step calls it, self, not"
      f" {model!r:.60}"
    )
  active = split_step.active_split(model)
  _check_compiled(model)
  if forward is not None:
    forward = _checked(forward, model.name)
  if active is not None:
    loss, gradients = active.gradients(data, forward)
  else:
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, gradients = forward_and_backward(model, (x, y, weight), forward)
    examples = tf.shape(tf.nest.flatten(x)[0])[0]
    model._loss_tracker.update_state(loss, sample_weight=examples)
    # The loss of the step is `forward`'s, which may add to `compute_loss`'s.
    record_loss = getattr(model.compute_loss, "record_loss", None)
    if record_loss is not None:
      record_loss(loss)
  if gradients and all(gradient is None for gradient in gradients):
    raise ExtractionError(
      f"model {model.name!r}: the loss of split_gradients depends on none of"
      " the model's trainable weights; compute it from the model's output"
    )
  return loss, gradients


def _check_compiled(model: keras.Model) -> None:
  if not model.compiled:
    raise ExtractionError(
      f"split_gradients is given model {model.name!r}, which is not compiled:"
      " give it the model whose train_step calls it, self"
    )


def _checked(
  forward: Callable[[Any, Any, Any], Any], model: str
) -> Callable[[Any, Any, Any], tf.Tensor]:
  """`forward` of the model of that name, with its loss checked.

  Raises:
    ExtractionError: it is no function.
  """
  called = f"model {model!r}: forward, which split_gradients is given,"
  if not callable(forward):
    raise ExtractionError(
      f"{called} is {forward!r:.60}; it must be a function of x, y and"
      " sample_weight"
    )

  @functools.wraps(forward)
  def checked(x: Any, y: Any, sample_weight: Any) -> tf.Tensor:
    loss = forward(x, y, sample_weight)
    wrong = None
    if not tf.is_tensor(loss):
      wrong = "None" if loss is None else f"{loss!r:.60} ({_type_name(loss)})"
    elif not isinstance(loss, tf.Tensor):
      wrong = f"a {_type_name(loss)}"
    elif loss.shape.rank not in (0, None):
      wrong = f"a tensor of shape {tuple(loss.shape)}"
    elif not loss.dtype.is_floating:
      wrong = f"a tensor of {loss.dtype.name}"
    if wrong is not None:
      raise ExtractionError(
        f"{called} returned {wrong}; it must return the loss of its part of"
        " the batch, a scalar tensor of floats"
      )
    return loss

  return checked


def _type_name(value: Any) -> str:
  return type(value).__name__
