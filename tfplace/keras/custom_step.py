"""The gradients of a `train_step` of a model's own, which tfplace can split."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

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
    ExtractionError: what is split would not compute the same; says why.
  """
  active = split_step.active_split(model)
  if active is not None:
    return active.gradients(data, forward)
  x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
  loss, gradients = forward_and_backward(model, (x, y, sample_weight), forward)
  examples = tf.shape(tf.nest.flatten(x)[0])[0]
  model._loss_tracker.update_state(loss, sample_weight=examples)
  return loss, gradients
