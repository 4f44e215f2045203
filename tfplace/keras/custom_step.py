"""Gradients of a custom `train_step` that can be split into microbatches."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfplace.errors import ExtractionError, shown
from tfplace.variants.microbatches import microbatched_step
from tfplace.variants.microbatches.forward import forward_and_backward


def split_gradients(
  model: keras.Model,
  data: Any,
  forward: Callable[[Any, Any, Any], tf.Tensor] | None = None,
) -> tuple[tf.Tensor, list[Any]]:
  """Computes loss and gradients of a batch in a custom `train_step`.

  In a microbatched step, the function computes them from microbatches. In any
  other step, it does what Keras' `train_step` does before the weight update.
  It updates the loss metric and, unless `forward` is given, the compiled
  metrics. Call it once per step and apply the gradients:

    def train_step(self, data):
      loss, gradients = tfplace.split_gradients(self, data)
      self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
      return self.get_metrics_result()

  Args:
    model: the model itself.
    data: argument of `train_step`: `x`, `(x, y)` or `(x, y, sample_weight)`.
    forward: function that takes `x`, `y` and `sample_weight` of a part of the
      batch and returns its scalar loss. It calls the model and `compute_loss`.
      It may add sums and means over examples and terms that depend only on
      weights, and it updates metrics of its choice. None computes the loss and
      updates the compiled metrics as Keras' `train_step` does.

  Returns:
    The loss of the batch and a list with the gradient of each trainable
    weight: a tensor, `tf.IndexedSlices` or None. Gradients are scaled if the
    optimizer scales losses.

  Raises:
    ExtractionError: the model is not compiled or is not the one whose step is
      traced; the loss is not a scalar float tensor or depends on no weight; or
      the microbatched step would compute another result.
  """
  if not isinstance(model, keras.Model):
    raise ExtractionError(
      "split_gradients takes the model whose train_step calls it, self, not"
      f" {model!r:.60}"
    )
  active = microbatched_step.active_step(model)
  if not model.compiled:
    raise ExtractionError(
      f"split_gradients is given model {model.name!r}, which is not compiled:"
      " give it the model whose train_step calls it, self"
    )
  if forward is not None:
    forward = _checked(forward, model.name)
  if active is not None:
    loss, gradients = active.gradients(data, forward)
  else:
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    loss, gradients = forward_and_backward(model, (x, y, weight), forward)
    examples = tf.shape(tf.nest.flatten(x)[0])[0]
    model._loss_tracker.update_state(loss, sample_weight=examples)
    # `forward` may add terms to `compute_loss`, so its loss is the step's loss.
    record_loss = getattr(model.compute_loss, "record_loss", None)
    if record_loss is not None:
      record_loss(loss)
  if gradients and all(gradient is None for gradient in gradients):
    raise ExtractionError(
      f"model {model.name!r}: the loss of split_gradients depends on none of"
      " the model's trainable weights; compute it from the model's output"
    )
  return loss, gradients


def _checked(
  forward: Callable[[Any, Any, Any], Any], model: str
) -> Callable[[Any, Any, Any], tf.Tensor]:
  """Wraps `forward` with a check of the returned loss.

  Raises:
    ExtractionError: `forward` is not callable.
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
    is_tensor = isinstance(loss, tf.Tensor) and loss.dtype.is_floating
    if not is_tensor or loss.shape.rank not in (0, None):
      raise ExtractionError(
        f"{called} returned {shown(loss)}; it must return the loss of its part"
        " of the batch, a scalar tensor of floats"
      )
    return loss

  return checked
