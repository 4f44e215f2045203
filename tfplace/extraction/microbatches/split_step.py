"""Splits the training step of a Keras model into microbatches.

Forward and backward run once for each part of the batch, the gradients are
added, and the optimizer runs once: the step computes what the whole one does
(GPipe's accumulation; Huang et al., 2019), as one graph whose parts a placer
can spread over devices. One microbatch is traced, the others are copies of its
graph (`graph_copies`). What a loss divides by, it divides by for the whole
batch (`whole_batch`), so that the microbatches' losses add up to the loss.
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
from tfplace.extraction.microbatches import SplitConfig
from tfplace.extraction.microbatches.forward import Forward, Gradient
from tfplace.extraction.microbatches.microbatch import Copy, microbatches
from tfplace.extraction.microbatches.parts import Parts
from tfplace.extraction.microbatches.sparse import SparseGradient, added
from tfplace.extraction.microbatches.whole_batch import check_losses

# Layers and metrics of a model, which other models may share, are other than
# they are while its microbatches are traced.
_TRACING = threading.RLock()


def split_train_step(
  model: keras.Model,
  data: Any,
  config: SplitConfig,
  own_step: Callable[[Any], Any] | None = None,
) -> tuple[Any, tf.Tensor]:
  """One training step in microbatches; to be traced by a `tf.function`.

  Args:
    model: compiled and built.
    data: `x`, `(x, y)` or `(x, y, sample_weight)` of n examples.
    config: how it is split.
    own_step: where the model has a `train_step` of its own, it; it asks for
      `gradients`, once.

  Returns:
    What `train_step` does, the metrics, and the loss of the batch.

  Raises:
    ExtractionError: the step cannot be split without changing what it
      computes; says why.
  """
  check_splits(model, config)
  if keras_inputs.has_own_step(model):
    return _own(Active(model, config), own_step or model.train_step, data)
  loss, found = gradients(model, data, config)
  model.optimizer.apply_gradients(
    zip(found, model.trainable_weights, strict=True)
  )
  return model.get_metrics_result(), loss


def gradients(
  model: keras.Model,
  data: Any,
  config: SplitConfig,
  forward: Forward | None = None,
) -> tuple[tf.Tensor, list[Gradient]]:
  """Loss and gradients of a batch, in microbatches; metrics are updated.

  Args:
    model: as for `split_train_step`.
    data: as for `split_train_step`.
    config: how it is split.
    forward: `x, y, sample_weight` of a part -> its loss; None: Keras' own.

  Returns:
    The loss, and by trainable weight its gradient, scaled for the optimizer.

  Raises:
    ExtractionError: as `split_train_step`.
  """
  parts = Parts(data, config.microbatches)
  with _TRACING:
    copies = microbatches(model, parts, config, forward)
  found = [
    _sum(variable, [copy.gradients[i] for copy in copies])
    for i, variable in enumerate(model.trainable_weights)
  ]
  loss = tf.add_n([copy.loss for copy in copies], name="loss")
  if forward is None:
    loss, found = _regularized(model, loss, found)
  _assign_means(copies, parts)
  model._loss_tracker.update_state(loss, sample_weight=parts.examples)
  _show_losses(copies, parts)
  _update_deferred(copies, parts)
  return loss, found


@dataclasses.dataclass
class Active:
  """A step of a model's own while it is traced in microbatches.

  Attributes:
    model: the model.
    config: how it is split.
    losses: one of each time that gradients were asked for.
  """

  model: keras.Model
  config: SplitConfig
  losses: list[tf.Tensor] = dataclasses.field(default_factory=list)

  def gradients(
    self, data: Any, forward: Forward | None
  ) -> tuple[tf.Tensor, list[Gradient]]:
    """As `gradients`."""
    loss, found = gradients(self.model, data, self.config, forward)
    self.losses.append(loss)
    return loss, found


_active: contextvars.ContextVar[Active | None] = contextvars.ContextVar(
  "tfplace_split_step", default=None
)


def active_split(model: keras.Model) -> Active | None:
  """The split of the step of `model` that is being traced, if it is one.

  Raises:
    ExtractionError: the step of another model is.
  """
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


def check_splits(model: keras.Model, config: SplitConfig) -> None:
  """Refuses a step that a split would change.

  Raises:
    ExtractionError: says what stands in the way, by name.
  """
  config.check()
  why = None
  for method in ("compute_loss", "compute_metrics"):
    if getattr(type(model), method) is not getattr(keras.Model, method):
      why = f"it has a {method} of its own"
  for layer in model._flatten_layers():
    statistics = isinstance(layer, keras.layers.BatchNormalization)
    if statistics and layer.trainable and not config.allow_batch_statistics:
      why = (
        f"layer {layer.name!r} computes statistics over the batch;"
        " allow_batch_statistics computes them for each microbatch, as"
        " replicated training does"
      )
  if why is not None:
    raise ExtractionError(
      f"the step of model {model.name!r} cannot be split: {why}"
    )
  check_losses(model)


def _sum(variable: keras.Variable, parts: Sequence[Gradient]) -> Gradient:
  """The gradient of the batch; sparse ones stay sparse.

  Added from left to right, so that each can be freed once it is added.
  """
  known = [part for part in parts if part is not None]
  if not known:
    return None
  with tf.name_scope(f"accumulate/{variable.path}/"):
    if all(isinstance(part, SparseGradient) for part in known):
      return added(known)
    return functools.reduce(tf.add, map(tf.convert_to_tensor, known))


def _regularized(
  model: keras.Model, loss: tf.Tensor, gradients: list[Gradient]
) -> tuple[tf.Tensor, list[Gradient]]:
  """Adds the regularization of the weights, once for the batch."""
  if all(v.regularizer is None for v in model.trainable_weights):
    return loss, gradients
  with tf.GradientTape() as tape:
    terms = tf.add_n(model._get_regularization_losses())
    scaled = model.optimizer.scale_loss(terms)
  more = tape.gradient(scaled, model.trainable_weights)
  pairs = zip(model.trainable_weights, gradients, more, strict=True)
  return loss + terms, [
    a if b is None else _sum(v, [a, b]) for v, a, b in pairs
  ]


def _show_losses(copies: Sequence[Copy], parts: Parts) -> None:
  """Updates the metrics of single losses as Keras' `CompileLoss` does."""
  for column in zip(*(copy.shown for copy in copies), strict=True):
    metric = column[0][0]
    value = tf.add_n([share for _, share in column])
    metric.update_state(value, parts.examples if parts.is_known else None)


def _update_deferred(copies: Sequence[Copy], parts: Parts) -> None:
  """Updates metrics that are no sum over examples, for the whole batch."""
  for number, update in enumerate(copies[0].updates):
    with tf.name_scope(f"whole_batch/{update.metric.name}/"):
      columns = zip(*(copy.arguments[number] for copy in copies), strict=True)
      update.update([_joined(column, parts) for column in columns])


def _joined(column: Sequence[tf.Tensor], parts: Parts) -> tf.Tensor:
  """A tensor of the batch, of those of its microbatches: shares are added."""
  if column[0].shape.rank == 0:
    return tf.add_n(list(column))
  if not parts.is_known:  # what has no examples was computed with one
    column = [t[: parts.size(i)] for i, t in enumerate(column)]
  return tf.concat(list(column), 0)


def _assign_means(copies: Sequence[Copy], parts: Parts) -> None:
  """Moving statistics become the mean of what the microbatches make of them,
  as `tf.distribute.MirroredStrategy` has it, without those of no examples."""
  for name, (handle, _) in copies[0].statistics.items():
    values = [copy.statistics[name][1] for copy in copies]
    count: Any = len(values)
    if not parts.is_known:
      values = [
        tf.where(parts.size(i) > 0, value, tf.zeros_like(value))
        for i, value in enumerate(values)
      ]
      count = tf.minimum(parts.examples, count)
    mean = tf.add_n(values) / tf.cast(count, values[0].dtype)
    tf.raw_ops.AssignVariableOp(resource=handle, value=mean)
