"""Microbatched training steps of Keras models.

Forward and backward pass run once per microbatch, the gradients are added, and
the optimizer runs once, so the step computes the same result as the whole step
(gradient accumulation as in GPipe; Huang et al., 2019). A placer can spread the
ops of the microbatches over devices, because all are part of one graph. One
microbatch is traced, and the others are copies of its graph (`graph_copies`).
Loss denominators count the whole batch (`whole_batch`), so the losses of the
microbatches add up to the loss of the batch.
"""

import contextvars
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import keras_inputs
from tfplace.graph.microbatches import VariantConfig
from tfplace.variants.microbatches.forward import Gradient
from tfplace.variants.microbatches.microbatch import Copy, microbatches
from tfplace.variants.microbatches.parts import Division, Forward, Parts
from tfplace.variants.microbatches.sparse import SparseGradient, added
from tfplace.variants.microbatches.whole_batch import (
  WholeBatch,
  check_losses,
)

# Tracing microbatches temporarily modifies layers and metrics, which other
# models may share.
_TRACING = threading.RLock()


def microbatched_train_step(
  model: keras.Model,
  data: Any,
  config: VariantConfig,
  own_step: Callable[[Any], Any] | None = None,
) -> tuple[Any, tf.Tensor]:
  """Builds one microbatched training step; call it inside a `tf.function`.

  Args:
    model: a compiled and built model.
    data: `x`, `(x, y)` or `(x, y, sample_weight)` of n examples.
    config: microbatches of the step.
    own_step: the model's own `train_step`, if it has one; it must call
      `split_gradients` exactly once.

  Returns:
    The result of `train_step` (the metrics), and the loss of the batch.

  Raises:
    ExtractionError: microbatches would change the result of the step.
  """
  check_microbatches(model, config)
  if keras_inputs.has_own_step(model):
    return _own(Active(model, config), own_step or model.train_step, data)
  loss, grads = gradients(model, data, config)
  if grads:  # Otherwise all weights are frozen, and Keras warns.
    model.optimizer.apply_gradients(
      zip(grads, model.trainable_weights, strict=True)
    )
  return model.get_metrics_result(), loss


def gradients(
  model: keras.Model,
  data: Any,
  config: VariantConfig,
  forward: Forward | None = None,
) -> tuple[tf.Tensor, list[Gradient]]:
  """Computes loss and gradients in microbatches, and updates the metrics.

  `forward` maps `x, y, sample_weight` of a microbatch to its loss; None is
  Keras' own. Gradients are by trainable weight, and scaled for the optimizer.
  """
  parts = Parts(data, config.count, sizes=config.sizes)
  with _TRACING:
    copies, whole = microbatches(Division(model, parts, config, forward))
  sums = [
    _sum(variable, [copy.gradients[i] for copy in copies], config)
    for i, variable in enumerate(model.trainable_weights)
  ]
  loss = tf.add_n([copy.loss for copy in copies], name="loss")
  if forward is None:
    loss, sums = _regularized(model, loss, sums, config)
  _assign_means(copies, parts)
  model._loss_tracker.update_state(loss, sample_weight=parts.examples)
  _show_losses(copies, whole, parts)
  _update_deferred(copies, whole, parts)
  return loss, sums


@dataclasses.dataclass
class Active:
  """A model's own `train_step` in microbatches, with its losses."""

  model: keras.Model
  config: VariantConfig
  losses: list[tf.Tensor] = dataclasses.field(default_factory=list)

  def gradients(
    self, data: Any, forward: Forward | None
  ) -> tuple[tf.Tensor, list[Gradient]]:
    loss, sums = gradients(self.model, data, self.config, forward)
    self.losses.append(loss)
    return loss, sums


_active: contextvars.ContextVar[Active | None] = contextvars.ContextVar(
  "tfplace_microbatched_step", default=None
)


def active_step(model: keras.Model) -> Active | None:
  """Returns the microbatched step of `model` that is being traced, if any."""
  active = _active.get()
  if active is not None and active.model is not model:
    raise ExtractionError(
      f"the step of model {active.model.name!r} cannot be split: its train_step"
      f" calls tfplace.split_gradients with another model, {model.name!r}; give"
      " it the model whose step it is, self"
    )
  return active


def _own(
  active: Active, step: Callable[[Any], Any], data: Any
) -> tuple[Any, tf.Tensor]:
  token = _active.set(active)
  try:
    logs = step(data)
  finally:
    _active.reset(token)
  if len(active.losses) != 1:
    raise ExtractionError(
      f"the step of model {active.model.name!r} cannot be split: it has a"
      " train_step of its own, which must call tfplace.split_gradients(self,"
      f" data) once, and calls it {len(active.losses)} times"
    )
  return logs, active.losses[0]


def check_microbatches(model: keras.Model, config: VariantConfig) -> None:
  """Raises ExtractionError if microbatches would change the step's result."""
  why = None
  for method in ("compute_loss", "compute_metrics"):
    if getattr(type(model), method) is not getattr(keras.Model, method):
      why = (
        f"it has a {method} of its own; rename it, and call it in the function"
        " that tfplace.split_gradients takes"
      )
  for layer in model._flatten_layers():
    statistics = isinstance(layer, keras.layers.BatchNormalization)
    if statistics and layer.trainable and not config.allow_batch_statistics:
      why = (
        f"layer {layer.name!r} (BatchNormalization) normalizes by statistics of"
        " the whole batch; allow_batch_statistics=True lets each microbatch use"
        " its own, as data-parallel training does, which changes the losses"
        " slightly"
      )
  if why is not None:
    raise ExtractionError(
      f"the step of model {model.name!r} cannot be split: {why}"
    )
  check_losses(model)


def _sum(
  variable: keras.Variable, parts: Sequence[Gradient], config: VariantConfig
) -> Gradient:
  """Adds gradients of a variable, those of all microbatches by `sums`."""
  known = [part for part in parts if part is not None]
  if not known:
    return None
  sums = config.sums if len(known) == config.count else range(len(known))
  add = functools.partial(_nested_sum, sums)
  with tf.name_scope(f"{config.sum_scope}/{variable.path}/"):
    if all(isinstance(part, SparseGradient) for part in known):
      return added(known, add)
    return add([tf.convert_to_tensor(part) for part in known])


def _nested_sum(sums: Any, parts: Sequence[tf.Tensor]) -> tf.Tensor:
  """Adds from left to right, so that each part can be freed once added."""
  if isinstance(sums, int):
    return parts[sums]
  return functools.reduce(tf.add, (_nested_sum(one, parts) for one in sums))


def _regularized(
  model: keras.Model,
  loss: tf.Tensor,
  gradients: list[Gradient],
  config: VariantConfig,
) -> tuple[tf.Tensor, list[Gradient]]:
  if all(v.regularizer is None for v in model.trainable_weights):
    return loss, gradients
  with tf.GradientTape() as tape:
    terms = tf.add_n(model._get_regularization_losses())
    scaled = model.optimizer.scale_loss(terms)
  more = tape.gradient(scaled, model.trainable_weights)
  pairs = zip(model.trainable_weights, gradients, more, strict=True)
  return loss + terms, [
    a if b is None else _sum(v, [a, b], config) for v, a, b in pairs
  ]


def _show_losses(
  copies: Sequence[Copy], whole: WholeBatch, parts: Parts
) -> None:
  """Updates the metrics of single losses as Keras' `CompileLoss` does."""
  for number, (metric, _) in enumerate(whole.shown):
    value = tf.add_n([copy.shown[number] for copy in copies])
    metric.update_state(value, parts.examples if parts.is_known else None)


def _update_deferred(
  copies: Sequence[Copy], whole: WholeBatch, parts: Parts
) -> None:
  for number, update in enumerate(whole.updates):
    with tf.name_scope(f"whole_batch/{update.metric.name}/"):
      columns = zip(*(copy.arguments[number] for copy in copies), strict=True)
      update.update([_joined(column, parts) for column in columns])


def _joined(column: Sequence[tf.Tensor], parts: Parts) -> tf.Tensor:
  """Joins a tensor of all microbatches; scalars are shares and are added."""
  if column[0].shape.rank == 0:
    return tf.add_n(list(column))
  if not parts.is_known:  # drop the filler rows of empty microbatches
    column = [t[: parts.size(i)] for i, t in enumerate(column)]
  return tf.concat(list(column), 0)


def _assign_means(copies: Sequence[Copy], parts: Parts) -> None:
  """Assigns mean moving statistics as `tf.distribute.MirroredStrategy` does.

  Microbatches of given sizes count by their examples.
  """
  for number, (handle, _) in enumerate(copies[0].statistics):
    values = [copy.statistics[number][1] for copy in copies]
    count: Any = len(values)
    if parts.sizes is not None:  # The mean over examples, not microbatches.
      dtype, count = values[0].dtype, parts.examples
      values = [
        value * tf.cast(parts.size(i), dtype) for i, value in enumerate(values)
      ]
    elif not parts.is_known:
      values = [
        tf.where(parts.size(i) > 0, value, tf.zeros_like(value))
        for i, value in enumerate(values)
      ]
      count = tf.minimum(parts.examples, count)
    mean = tf.add_n(values) / tf.cast(count, values[0].dtype)
    tf.raw_ops.AssignVariableOp(resource=handle, value=mean)
