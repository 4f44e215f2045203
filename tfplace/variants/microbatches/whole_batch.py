"""Losses of microbatches that add up to the loss of the whole batch.

While the step of a microbatch is traced, the model's losses divide by the count
of the whole batch instead of the microbatch's. The count is the number of
elements if all examples count. With masks or sums of weights, it is a
placeholder for the sum of a recorded tensor over all microbatches.
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Iterator
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask
from keras.src.losses.loss import squeeze_or_expand_to_same_rank

from tfplace.errors import ExtractionError
from tfplace.graph.paths import reached
from tfplace.variants.microbatches import graph_copies

# Number of a shared loss, then inputs of the ops that combine its terms.
Path: TypeAlias = tuple[int, ...]

_MEANS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")


@dataclasses.dataclass(frozen=True)
class Deferred:
  """A metric update for the whole batch, with a microbatch's arguments."""

  metric: keras.Metric
  arguments: tuple[tuple[Any, ...], dict[str, Any]]

  @property
  def tensors(self) -> list[tf.Tensor]:
    """Lists the tensors in the arguments."""
    flat = tf.nest.flatten(self.arguments)
    return [value for value in flat if isinstance(value, tf.Tensor)]

  def update(self, tensors: list[tf.Tensor]) -> None:
    """Updates the metric with `tensors` in place of the recorded ones."""
    left = iter(tensors)
    args, kwargs = tf.nest.map_structure(
      lambda v: next(left) if isinstance(v, tf.Tensor) else v, self.arguments
    )
    self.metric.update_state(*args, **kwargs)


@dataclasses.dataclass
class WholeBatch:
  """Whole-batch context of a microbatch that is being traced.

  Attributes:
    model: the model.
    size: examples in the microbatch; a number or a tensor.
    whole: examples in the batch; a number or a tensor.
    kinds: reduction over examples of each added loss, in the order of tracing:
      "sum", "mean", or "weights" for a loss that depends on weights only.
    present: scalar that says whether the microbatch has examples; None if it
      always has. A microbatch without examples computes with one filler example
      that contributes nothing.
    with_regularization: whether `compute_loss` adds the weight regularization.
    deferred: ids of the metrics to update with the whole batch.
    sized: paths of the factors of losses that are numbers of examples.
    values: per-example loss values and their weights.
    totals: pairs of a placeholder and a scalar of this microbatch; the sum of
      the scalar over all microbatches replaces the placeholder.
    shown: pairs of a metric that reports the loss of one output and this
      microbatch's share.
    updates: updates of deferred metrics.
  """

  model: keras.Model
  size: Any
  whole: Any
  kinds: Iterator[str] = dataclasses.field(default_factory=lambda: iter(()))
  present: tf.Tensor | None = None
  with_regularization: bool = False
  deferred: frozenset[int] = frozenset()
  sized: frozenset[Path] = frozenset()
  values: list[tf.Tensor] = dataclasses.field(default_factory=list)
  totals: list[tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(
    default_factory=list
  )
  shown: list[tuple[keras.Metric, tf.Tensor]] = dataclasses.field(
    default_factory=list
  )
  updates: list[Deferred] = dataclasses.field(default_factory=list)
  _shares: list[tf.Tensor] = dataclasses.field(default_factory=list)
  _num_shared: int = 0

  @contextlib.contextmanager
  def reductions(self) -> Iterator[None]:
    """Turns the model's losses into shares of the whole batch's losses.

    Within this context, metrics of single losses and deferred metrics are
    recorded instead of updated. Only objects of the model are modified.
    """
    with contextlib.ExitStack() as stack:
      stack.enter_context(replaced(self.model, "compute_loss", self._loss))
      for metric in getattr(self.model._compile_loss, "metrics", ()):
        show = functools.partial(self._show, metric)
        stack.enter_context(replaced(metric, "update_state", show))
      for metric in compiled_metrics(self.model):
        if id(metric) in self.deferred:
          defer = functools.partial(self._defer, metric)
          stack.enter_context(replaced(metric, "update_state", defer))
      yield

  def _show(
    self, metric: keras.Metric, value: tf.Tensor, sample_weight: Any = None
  ) -> None:
    self.shown.append((metric, value))

  def _defer(self, metric: keras.Metric, *args: Any, **kwargs: Any) -> None:
    def of_batch(value: Any) -> Any:
      is_scalar = isinstance(value, tf.Tensor) and value.shape.rank == 0
      return self.share(value) if is_scalar else value

    arguments = tf.nest.map_structure(of_batch, (args, kwargs))
    self.updates.append(Deferred(metric, arguments))

  @contextlib.contextmanager
  def metrics_kept(self) -> Iterator[None]:
    """Restores the metrics on exit if the microbatch has no examples."""
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

  def _loss(
    self,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    training: bool = True,
  ) -> tf.Tensor:
    model, losses = self.model, []
    if model._compile_loss is not None:
      losses.append(self._compiled(y, y_pred, sample_weight))
    for layer in model._flatten_layers():
      losses += [self._additional(loss) for loss in layer._get_own_losses()]
    if self.with_regularization:
      weights = model._get_regularization_losses()
      losses += [self._additional(loss) for loss in weights]
    loss = tf.add_n([loss for loss in losses if loss is not None])
    self._shares.append(loss)
    return loss

  def _compiled(self, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    compiled = self.model._compile_loss
    if not compiled.built:  # only builds it; the ops of this call are unused
      compiled(y, y_pred, sample_weight)
    losses = [
      entry._replace(loss=_LossOfWhole(entry.loss, self))
      for entry in compiled._flat_losses
    ]
    with replaced(compiled, "_flat_losses", losses):
      return compiled(y, y_pred, sample_weight)

  def share(self, loss: tf.Tensor) -> tf.Tensor:
    """Returns this microbatch's share of a loss.

    The loss may combine the result of `compute_loss` with other terms. Raises
    ExtractionError if a term is neither a sum nor a mean over examples.
    """
    self._num_shared += 1
    return self._share(loss, (self._num_shared,))

  def _share(self, loss: tf.Tensor, path: Path) -> tf.Tensor:
    if any(loss is known for known in self._shares):
      return loss
    kind, inputs = loss.op.type, list(loss.op.inputs)

    def share(index: int) -> tf.Tensor:
      return self._share(inputs[index], (*path, index))

    def is_factor(index: int) -> bool:
      return self._is_factor(inputs[index], (*path, index))

    if kind == "Identity":
      return share(0)
    if kind == "Neg":
      return -share(0)
    if kind in ("Add", "AddV2", "AddN"):
      return tf.add_n([share(index) for index in range(len(inputs))])
    if kind == "Sub":
      return share(0) - share(1)
    if kind == "Mul" and is_factor(0):
      return inputs[0] * share(1)
    if kind == "Mul" and is_factor(1):
      return inputs[1] * share(0)
    if kind == "RealDiv" and is_factor(1):
      return share(0) / inputs[1]
    return self._additional(loss)

  def _is_factor(self, factor: tf.Tensor, path: Path) -> bool:
    """Returns whether a factor of a loss is the same for all batches."""
    return tf.get_static_value(factor) is not None and path not in self.sized

  def _additional(self, loss: tf.Tensor) -> tf.Tensor:
    if next(self.kinds) == "sum":
      return self._counted(loss)
    share = tf.cast(self.size, loss.dtype) / tf.cast(self.whole, loss.dtype)
    return self._counted(loss * share)

  def reduced(
    self,
    values: tf.Tensor,
    sample_weight: tf.Tensor | None,
    mask: tf.Tensor | None,
    reduction: str | None,
  ) -> tf.Tensor:
    """Reduces loss values as Keras does, but for the whole batch.

    Args:
      values: [examples, ...], or a scalar sum or mean over examples.
      sample_weight: weights of examples or of elements.
      mask: elements that count.
      reduction: name of Keras' reduction.

    Raises:
      ExtractionError: the loss has no reduction, or lacks the per-example
        values that masks or weights need.
    """
    if values.shape.rank == 0 and sample_weight is None and mask is None:
      return self._additional(values)
    self._check_values(values, reduction)
    if mask is not None:
      mask = tf.cast(mask, values.dtype)
    weight = self._masked(sample_weight, mask, reduction)
    self.values += [t for t in (values, sample_weight, mask) if t is not None]
    if weight is not None:
      weight = tf.cast(weight, values.dtype)
      values, weight = squeeze_or_expand_to_same_rank(values, weight)
      values = values * weight
    loss = self._counted(tf.reduce_sum(values))
    if reduction in _MEANS:
      weighted = reduction == "mean_with_sample_weight"
      if weighted and weight is not None:
        count = self._total(tf.cast(tf.reduce_sum(weight), loss.dtype))
      else:
        count = self._elements(values, loss.dtype)
      loss = tf.math.divide_no_nan(loss, count)
    return loss

  def _masked(
    self,
    sample_weight: tf.Tensor | None,
    mask: tf.Tensor | None,
    reduction: str | None,
  ) -> tf.Tensor | None:
    """Combines weights and mask; kept elements make up for masked ones."""
    if mask is None:
      return sample_weight
    weight = mask
    if reduction in ("mean", "sum_over_batch_size"):
      elements = self._elements(mask, mask.dtype)
      valid = self._total(tf.reduce_sum(mask))
      weight = mask * tf.math.divide_no_nan(elements, valid)
    if sample_weight is None:
      return weight
    sample_weight = tf.cast(sample_weight, mask.dtype)
    weight, sample_weight = squeeze_or_expand_to_same_rank(
      weight, sample_weight
    )
    return sample_weight * weight

  def _total(self, tensor: tf.Tensor) -> tf.Tensor:
    """Creates a placeholder for the sum of a scalar over all microbatches."""
    whole = tf.compat.v1.placeholder(tensor.dtype, (), name="of_whole_batch")
    self.totals.append((whole, self._counted(tensor)))
    return whole

  def _counted(self, scalar: tf.Tensor) -> tf.Tensor:
    """Returns the scalar, or 0 for a microbatch without examples."""
    if self.present is None:
      return scalar
    return tf.where(self.present, scalar, tf.zeros_like(scalar))

  def _elements(self, values: tf.Tensor, dtype: Any) -> tf.Tensor:
    """Counts the elements that [examples, ...] has for the whole batch."""
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
      if values.shape.rank == 0:
        why += ", which masks or sample weights need"
      raise ExtractionError(
        f"the step of model {self.model.name!r} cannot be split: its loss"
        f" {name!r} {why} (shape {values.shape}, reduction {reduction!r}); plan"
        " the whole step (microbatches=1), or let it return one value per"
        " example, with a reduction"
      )


class _LossOfWhole:
  def __init__(self, loss: keras.losses.Loss, whole: WholeBatch) -> None:
    self._loss, self._whole = loss, whole

  def __call__(self, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
    loss = self._loss

    def convert(value: Any) -> Any:
      return keras.ops.convert_to_tensor(value, dtype=loss.dtype)

    masks = [get_keras_mask(y_pred)]
    with keras.name_scope(loss.name):
      y_pred = keras.tree.map_structure(convert, y_pred)
      y = keras.tree.map_structure(convert, y)
      values = loss.call(y, y_pred)
      masks.append(get_keras_mask(values))
      known = [mask for mask in masks if mask is not None]
      mask = functools.reduce(operator.and_, known) if known else None
      if sample_weight is not None:
        sample_weight = convert(sample_weight)
      return self._whole.reduced(
        convert(values), sample_weight, mask, loss.reduction
      )


def check_losses(model: keras.Model) -> None:
  """Raises ExtractionError for a loss that reduces its own values."""
  losses = getattr(model._compile_loss, "_flat_losses", None)
  for entry in losses or []:
    loss = getattr(entry, "loss", entry)
    function = getattr(loss, "fn", loss)
    if type(loss).__call__ is not keras.losses.Loss.__call__:
      name = getattr(function, "__name__", type(function).__name__)
      raise ExtractionError(
        f"the step of model {model.name!r} cannot be split: its loss {name!r}"
        " reduces its values"
        " by itself: give it a call() that returns one value per example"
      )


def compiled_metrics(model: keras.Model) -> list[keras.Metric]:
  """Lists the metrics that a step updates, even nested, except of losses."""

  def is_container(metric: keras.Metric) -> bool:
    return getattr(metric, "_flat_metrics", None) is not None

  losses = getattr(model._compile_loss, "metrics", ())
  every = reached(model.metrics, lambda m: m.metrics if is_container(m) else ())
  return [m for m in every if m not in losses and not is_container(m)]


@contextlib.contextmanager
def replaced(owner: Any, name: str, method: Any) -> Iterator[None]:
  """Replaces an attribute in this context, without Keras' tracking."""
  before = vars(owner).get(name)
  object.__setattr__(owner, name, method)
  try:
    yield
  finally:
    if before is None:
      object.__delattr__(owner, name)
    else:
      object.__setattr__(owner, name, before)
