"""The forward pass of a step: the loss of a batch, and its metrics."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf

# `x, y, sample_weight` of a part of the batch -> its loss.
Forward: TypeAlias = Callable[[Any, Any, Any], tf.Tensor]
# A tensor, `tf.IndexedSlices` or, of a microbatch, `SparseGradient`; or None.
Gradient: TypeAlias = Any


def run_forward(
  model: keras.Model, data: Any, forward: Forward | None
) -> tuple[tf.Tensor, Callable[[], None]]:
  """Computes the loss of `x, y, sample_weight`.

  Args:
    model: to be called.
    data: a batch or a part of one.
    forward: gives the loss; None: as Keras' `train_step` does.

  Returns:
    The loss, a scalar, and a function that updates the metrics that are left.
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
  """Loss and gradients of `x, y, sample_weight`, and metrics but of the loss.

  Args:
    model: whose optimizer scales the loss before the gradients are taken.
    data: a batch or a part of one.
    forward: gives the loss; None: as Keras' `train_step` does.
    share: what to take of the loss.
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
  """Weights of recurrent layers are read here, once, and not in their loops.

  A loop that reads a variable must be on the variable's device, and all
  microbatches with it; one that is given the value may be anywhere.
  """
  held: list[tuple[keras.Variable, tf.Variable]] = []
  try:
    for layer in model._flatten_layers():
      if isinstance(layer, keras.layers.RNN):
        for variable in layer.cell.weights:  # not states of the layer's own
          with tf.name_scope(f"{variable.path}/"):
            value = variable._value.read_value()
          held.append((variable, variable._value))
          variable._value = value
    yield
  finally:
    for variable, kept in reversed(held):
      variable._value = kept
