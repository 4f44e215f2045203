"""Splits the training step of a Keras model into microbatches.

Forward and backward run once for each part of the batch, the gradients are
added, and the optimizer runs once: the step computes what the whole one does
(GPipe's accumulation; Huang et al., 2019), as one graph whose parts a placer
can spread over devices. One microbatch is traced, the others are copies of its
graph (`graph_copies`). What a loss divides by, it divides by for the whole
batch (`whole_batch`), so that the microbatches' losses add up to the loss.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters import data_adapter_utils

from tfplace.errors import ExtractionError
from tfplace.extraction import keras_inputs
from tfplace.extraction.microbatches import SCOPE, graph_copies
from tfplace.extraction.microbatches.whole_batch import WholeBatch, check_losses

Gradient = Any  # tf.Tensor, tf.IndexedSlices or None


@dataclasses.dataclass(frozen=True)
class SplitConfig:
  """How a step is split.

  Attributes:
    microbatches: k: n examples are cut into parts of n // k or n // k + 1.
    max_in_flight: the forward pass of microbatch i + this starts only when the
      backward pass of microbatch i has ended; None: k.
    allow_batch_statistics: statistics over the batch (BatchNormalization) may
      be computed for each microbatch, as replicated training does.
  """

  microbatches: int
  max_in_flight: int | None = None
  allow_batch_statistics: bool = False

  def check(self) -> None:
    """Checks the numbers.

    Raises:
      ExtractionError: one is below 1.
    """
    for name in ("microbatches", "max_in_flight"):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ExtractionError(f"{name} is {value}; it must be at least 1")


def split_train_step(
  model: keras.Model, data: Any, config: SplitConfig
) -> tuple[dict[str, Any], tf.Tensor]:
  """One training step in microbatches; to be traced by a `tf.function`.

  Args:
    model: compiled and built, with Keras' own `train_step`.
    data: `x`, `(x, y)` or `(x, y, sample_weight)` of n examples.
    config: how it is split.

  Returns:
    The metrics, as `train_step` does, and the loss of the batch.

  Raises:
    ExtractionError: the step cannot be split without changing what it
      computes; says why.
  """
  check_splits(model, config)
  parts = _Parts(data, config.microbatches)
  copies = _copies(model, parts, config)
  gradients = [
    _sum(variable, [copy.gradients[i] for copy in copies])
    for i, variable in enumerate(model.trainable_weights)
  ]
  loss = tf.add_n([copy.loss for copy in copies], name="loss")
  loss, gradients = _regularized(model, loss, gradients)
  _assign_means(copies)
  model._loss_tracker.update_state(loss, sample_weight=parts.examples)
  _show_losses(copies, parts)
  model.optimizer.apply_gradients(
    zip(gradients, model.trainable_weights, strict=True)
  )
  return model.get_metrics_result(), loss


def check_splits(model: keras.Model, config: SplitConfig) -> None:
  """Refuses a step that a split would change.

  Raises:
    ExtractionError: says what stands in the way, by name.
  """
  config.check()
  why = None
  if keras_inputs.has_own_step(model):
    why = "it has a train_step of its own"
  for method in ("compute_loss", "compute_metrics"):
    if getattr(type(model), method) is not getattr(keras.Model, method):
      why = f"it has a {method} of its own"
  for layer in model._flatten_layers():
    if getattr(layer, "stateful", False) and isinstance(
      layer, keras.layers.RNN
    ):
      why = f"layer {layer.name!r} keeps its state from batch to batch"
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


class _Parts:
  """The batch, and how it is cut.

  Attributes:
    examples: n; a number where it is known while tracing, else a tensor.
  """

  def __init__(self, data: Any, count: int) -> None:
    unpacked = data_adapter_utils.unpack_x_y_sample_weight(data)
    self._data = unpacked
    flat = [t for t in tf.nest.flatten(unpacked) if t is not None]
    for tensor in flat:
      if not isinstance(tensor, tf.Tensor):
        raise ExtractionError(
          f"a batch with a {type(tensor).__name__} cannot be split"
        )
    rows = {t.shape[0] for t in flat}
    known = rows.pop() if len(rows) == 1 else None
    self.examples = tf.shape(flat[0])[0] if known is None else known
    self.count = count

  def size(self, index: int) -> Any:
    """Examples of a microbatch."""
    extra = self.examples % self.count
    if isinstance(extra, int):
      return self.examples // self.count + (index < extra)
    return self.examples // self.count + tf.cast(index < extra, tf.int32)

  def part(self, index: int) -> Any:
    """The data of a microbatch."""
    extra, least = self.examples % self.count, self.examples // self.count
    smaller = min if isinstance(extra, int) else tf.minimum
    begin = index * least + smaller(index, extra)
    end = begin + self.size(index)
    return tf.nest.map_structure(
      lambda t: None if t is None else t[begin:end], self._data
    )


@dataclasses.dataclass
class _Traced:
  """The step of one microbatch as it was traced; tensors of its own graph."""

  loss: tf.Tensor
  gradients: list[Gradient]
  whole: WholeBatch
  graph: Any = None
  data: list[tf.Tensor] = dataclasses.field(default_factory=list)
  # Handle of a moving statistic -> the value that it is given.
  statistics: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)
  template: Any = None  # graph_copies.GraphTemplate

  @property
  def results(self) -> list[tf.Tensor]:
    """What copies are asked for."""
    tensors = [self.loss, *self.statistics.values()]
    for gradient in self.gradients:
      tensors += _components(gradient)
    tensors += [tensor for _, tensor in self.whole.totals]
    return tensors + [tensor for _, tensor in self.whole.shown]

  def inputs(self, data: Any) -> dict[str, tf.Tensor]:
    """Tensor name of each input -> its part of the batch."""
    flat = [t for t in tf.nest.flatten(data) if t is not None]
    return {t.name: part for t, part in zip(self.data, flat, strict=True)}

  def gated(
    self, given: dict[str, tf.Tensor], earlier: "_Copy"
  ) -> dict[str, tf.Tensor]:
    """The inputs, there only once an earlier microbatch has ended."""
    with tf.control_dependencies(earlier.tensors):
      ended = tf.no_op("begin")
    with tf.control_dependencies([ended]):
      return {t.name: tf.identity(given[t.name]) for t in self.data}

  def copy(self, scope: str, given: dict[str, tf.Tensor]) -> "_Copy":
    """One more microbatch, of what is not made yet."""
    ops = {op for op in self.template.ops if f"{op}:0" not in given}
    made = given | self.template.copy(scope, given, ops)
    return _Copy(
      made[self.loss.name],
      [_mapped(gradient, made) for gradient in self.gradients],
      [(metric, made[value.name]) for metric, value in self.whole.shown],
      {
        made[name].name: (made[name], made[t.name])
        for name, t in self.statistics.items()
      },
    )


@dataclasses.dataclass(frozen=True)
class _Copy:
  """One microbatch in the graph of the step.

  Attributes:
    loss: its share.
    gradients: of the trainable weights.
    shown: metrics of losses, and their shares.
    statistics: name of the handle of a moving statistic -> handle, new value.
  """

  loss: tf.Tensor
  gradients: list[Gradient]
  shown: list[tuple[keras.Metric, tf.Tensor]]
  statistics: dict[str, tuple[tf.Tensor, tf.Tensor]]

  @property
  def tensors(self) -> list[tf.Tensor]:
    """All that the backward pass ends with."""
    found = [self.loss]
    for gradient in self.gradients:
      found += _components(gradient)
    return found


def _components(gradient: Gradient) -> list[tf.Tensor]:
  if gradient is None:
    return []
  if isinstance(gradient, tf.IndexedSlices):
    parts = (gradient.values, gradient.indices, gradient.dense_shape)
    return [part for part in parts if part is not None]
  return [gradient]


def _mapped(gradient: Gradient, made: Mapping[str, tf.Tensor]) -> Gradient:
  """The gradient in a copy."""
  if gradient is None:
    return None
  if isinstance(gradient, tf.IndexedSlices):
    shape = gradient.dense_shape
    return tf.IndexedSlices(
      made[gradient.values.name],
      made[gradient.indices.name],
      None if shape is None else made[shape.name],
    )
  return made[gradient.name]


def _sum(variable: keras.Variable, parts: Sequence[Gradient]) -> Gradient:
  """The gradient of the batch; sparse ones stay sparse.

  Added from left to right, so that each can be freed once it is added.
  """
  known = [part for part in parts if part is not None]
  if not known:
    return None
  with tf.name_scope(f"accumulate/{variable.path}/"):
    if all(isinstance(part, tf.IndexedSlices) for part in known):
      return tf.IndexedSlices(
        tf.concat([part.values for part in known], 0),
        tf.concat([part.indices for part in known], 0),
        known[0].dense_shape,
      )
    return functools.reduce(tf.add, map(tf.convert_to_tensor, known))


def _regularized(
  model: keras.Model, loss: tf.Tensor, gradients: list[Gradient]
) -> tuple[tf.Tensor, list[Gradient]]:
  """Adds the regularization of the weights, once for the batch."""
  if all(v.regularizer is None for v in model.trainable_weights):
    return loss, gradients
  with tf.GradientTape() as tape:
    added = tf.add_n(model._get_regularization_losses())
    scaled = model.optimizer.scale_loss(added)
  more = tape.gradient(scaled, model.trainable_weights)
  pairs = zip(model.trainable_weights, gradients, more, strict=True)
  return loss + added, [_sum(v, [a, b]) for v, a, b in pairs]


def _show_losses(copies: Sequence[_Copy], parts: _Parts) -> None:
  """Updates the metrics of single losses as Keras' `CompileLoss` does."""
  known = isinstance(parts.examples, int)
  for column in zip(*(copy.shown for copy in copies), strict=True):
    metric = column[0][0]
    value = tf.add_n([share for _, share in column])
    metric.update_state(value, parts.examples if known else None)


def _assign_means(copies: Sequence[_Copy]) -> None:
  """Moving statistics become the mean of what the microbatches make of them,
  as `tf.distribute.MirroredStrategy` has it."""
  for name, (handle, _) in copies[0].statistics.items():
    values = [copy.statistics[name][1] for copy in copies]
    mean = tf.add_n(values) / float(len(values))
    tf.raw_ops.AssignVariableOp(resource=handle, value=mean)


def _trace(model: keras.Model, parts: _Parts, index: int) -> _Traced:
  """Traces the step of a microbatch."""
  part = parts.part(index)
  flat = [t for t in tf.nest.flatten(part) if t is not None]
  results: list[_Traced] = []

  def microbatch_step(*tensors: tf.Tensor) -> None:
    left = iter(tensors)
    x, y, weight = tf.nest.map_structure(
      lambda t: None if t is None else next(left), part
    )
    size = tensors[0].shape[0]
    if size is None:
      size = tf.shape(tensors[0])[0]
    whole = WholeBatch(model, size, parts.examples)
    results.append(_microbatch(model, x, y, weight, whole))

  specs = [tf.TensorSpec(t.shape, t.dtype) for t in flat]
  function = tf.function(microbatch_step, jit_compile=False, autograph=False)
  concrete = function.get_concrete_function(*specs)
  traced = results[-1]
  traced.graph, traced.data = concrete.graph, list(concrete.inputs[: len(flat)])
  assigned = _statistics(model, traced.graph)
  traced.statistics = {op.inputs[0].name: op.inputs[1] for op in assigned}
  traced.template = graph_copies.GraphTemplate(
    traced.graph, traced.results, {op.name for op in assigned}
  )
  return traced


def _microbatch(
  model: keras.Model, x: Any, y: Any, weight: Any, whole: WholeBatch
) -> _Traced:
  """Forward and backward of one microbatch, and its share of the metrics."""
  with whole.reductions(), tf.GradientTape() as tape:
    options = {"training": True} if model._call_has_training_arg else {}
    y_pred = model(x, **options)
    losses = []
    if model._compile_loss is not None:
      losses.append(model._compile_loss(y, y_pred, weight))
    for layer in model._flatten_layers():
      losses += [whole.additional(loss) for loss in layer._get_own_losses()]
    loss = tf.add_n([loss for loss in losses if loss is not None])
    scaled = model.optimizer.scale_loss(loss)
  gradients = tape.gradient(scaled, model.trainable_weights)
  model.compute_metrics(x, y, y_pred, sample_weight=weight)
  return _Traced(loss, list(gradients), whole)


def _statistics(model: keras.Model, graph: Any) -> list[tf.Operation]:
  """Assignments of moving statistics.

  Raises:
    ExtractionError: the forward pass assigns another variable of a layer than
      those, or the seeds of random masks.
  """
  moving, kept = set(), set()
  for layer in model._flatten_layers():
    if isinstance(layer, keras.layers.BatchNormalization):
      moving |= {id(v.value.handle) for v in layer.non_trainable_variables}
  for variable in model.variables:
    if variable.name == "seed_generator_state":
      kept.add(id(variable.value.handle))
  for metric in model.metrics:
    kept |= {id(v.value.handle) for v in metric.variables}
  outer = {inner.name: tensor for tensor, inner in graph.captures}
  found = []
  for op in graph_copies.assignments(graph):
    handle = outer.get(op.inputs[0].name)
    if id(handle) in moving:
      found.append(op)
    elif id(handle) not in kept:
      raise ExtractionError(
        f"the step of model {model.name!r} cannot be split: {op.name!r}"
        " updates a variable in the forward pass",
        op=op.name,
      )
  return found


def _copies(
  model: keras.Model, parts: _Parts, config: SplitConfig
) -> list[_Copy]:
  """The microbatches in the current graph, each in a scope of its own."""
  steps = _by_size(model, parts)
  values: dict[str, tf.Tensor] = {}
  captured = {id(step): step for step in steps}
  read = {key: s.template.captured(values) for key, s in captured.items()}
  given = []
  for index, step in enumerate(steps):
    with tf.name_scope(f"{SCOPE}{index}/part_of_batch/"):
      given.append(read[id(step)] | step.inputs(parts.part(index)))
  _add_totals(steps, given)
  copies: list[_Copy] = []
  for index, step in enumerate(steps):
    before = index - (config.max_in_flight or parts.count)
    if before >= 0:
      with tf.name_scope(f"{SCOPE}{index}/part_of_batch/"):
        given[index] |= step.gated(given[index], copies[before])
    copies.append(step.copy(f"{SCOPE}{index}/", given[index]))
  return copies


def _add_totals(
  steps: Sequence[_Traced], given: Sequence[dict[str, tf.Tensor]]
) -> None:
  """Makes what counts for the whole batch, of all microbatches.

  The ops that count are copied here; the other copies go on from them.
  """
  counts = []
  for index, (step, known) in enumerate(zip(steps, given, strict=True)):
    mine = [tensor for _, tensor in step.whole.totals]
    ops = step.template.needed_by(tensor.op for tensor in mine)
    if ops:
      known.update(step.template.copy(f"{SCOPE}{index}/", known, ops))
    counts.append([known[tensor.name] for tensor in mine])
  for number, column in enumerate(zip(*counts, strict=True)):
    total = tf.add_n(column, name=f"whole_batch_{number}")
    for step, known in zip(steps, given, strict=True):
      known[step.whole.totals[number][0].name] = total


def _by_size(model: keras.Model, parts: _Parts) -> list[_Traced]:
  """The traced step of each microbatch; those of one size share it."""
  known: dict[Any, _Traced] = {}
  steps = []
  for index in range(parts.count):
    size = parts.size(index)
    key = size if isinstance(size, int) else None
    if key not in known:
      known[key] = _trace(model, parts, index)
    steps.append(known[key])
  return steps
