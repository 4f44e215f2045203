"""Forward pass of a step: the loss and the metrics of a batch."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfplace.variants.microbatches.parts import Forward

# A tensor, `tf.IndexedSlices`, `SparseGradient` (in a microbatch) or None.
Gradient: TypeAlias = Any


def run_forward(
  model: keras.Model, data: Any, forward: Forward | None
) -> tuple[tf.Tensor, Callable[[], None]]:
  """Computes the loss of `x, y, sample_weight`, by Keras without a `forward`.

  Returns:
    The loss, a scalar, and a function that updates the remaining metrics.
  """
  x, y, weight = data
  with _loop_weights_read(model):
    if forward is not None:
      return forward(x, y, weight), lambda: None
    options = {"training": True} if model._call_has_training_arg else {}
    y_pred = model(x, **options)
    loss = model._compute_loss(x, y, y_pred, weight, training=True)

  def update_metrics() -> None:
    model.compute_metrics(x, y, y_pred, sample_weight=weight)

  return loss, update_metrics


def forward_and_backward(
  model: keras.Model,
  data: Any,
  forward: Forward | None,
  share: Callable[[tf.Tensor], tf.Tensor] = lambda loss: loss,
) -> tuple[tf.Tensor, list[Gradient]]:
  """Computes loss and gradients, and updates all metrics except the loss.

  `share` maps the loss to the part of it to differentiate. The model's
  optimizer scales the loss.
  """
  with tf.GradientTape() as tape:
    loss, update_metrics = run_forward(model, data, forward)
    loss = share(loss)
    scaled = loss
    if model.optimizer is not None:
      scaled = model.optimizer.scale_loss(loss)
  gradients = tape.gradient(scaled, model.trainable_weights)
  update_metrics()
  return loss, list(gradients)


@contextlib.contextmanager
def _loop_weights_read(model: keras.Model) -> Iterator[None]:
  """Reads weights of recurrent layers once here instead of in their loops.

  A loop that reads a variable must run on the variable's device, and so must
  the loops of all microbatches. A loop that receives the value can run on any
  device.
  """
  held: list[tuple[keras.Variable, tf.Variable]] = []
  try:
    for layer in model._flatten_layers():
      if isinstance(layer, keras.layers.RNN):
        for variable in layer.cell.weights:  # without the layer's own states
          with tf.name_scope(f"{variable.path}/"):
            value = variable._value.read_value()
          held.append((variable, variable._value))
          variable._value = value
    yield
  finally:
    for variable, kept in reversed(held):
      variable._value = kept
