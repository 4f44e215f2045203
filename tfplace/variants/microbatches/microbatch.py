"""One microbatch of a training step: traced once per size, then copied.

The losses and gradients of a microbatch are shares of those of the whole batch
(`whole_batch`). `microbatched_step` combines the shares into one step.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfplace.errors import ExtractionError
from tfplace.extraction import keras_inputs
from tfplace.graph.microbatches import (
  BATCH_SCOPE,
  BEGIN,
  SCOPE,
  SIZE_SCOPE,
  WHOLE,
  VariantConfig,
)
from tfplace.variants.microbatches import graph_copies, states
from tfplace.variants.microbatches.examine import (
  Findings,
  assigned_states,
  examine,
)
from tfplace.variants.microbatches.forward import (
  Gradient,
  forward_and_backward,
)
from tfplace.variants.microbatches.parts import Division
from tfplace.variants.microbatches.sparse import followed
from tfplace.variants.microbatches.whole_batch import WholeBatch
from tfplace.variants.recompute import recompute


class Copy(NamedTuple):
  """Tensors of one microbatch, in the graph of the step or in its trace.

  Attributes:
    loss: its share of the loss.
    gradients: its shares of the gradients of the trainable weights.
    shown: its shares of the losses that metrics report.
    statistics: handle and new value of each moving statistic.
    states: index of a state -> its rows for the next batch.
    arguments: tensors for each metric update of the whole batch.
    totals: scalars whose sums over all microbatches are needed.
  """

  loss: tf.Tensor
  gradients: list[Gradient]
  shown: list[tf.Tensor]
  statistics: list[tuple[tf.Tensor, tf.Tensor]]
  states: dict[int, tf.Tensor]
  arguments: list[list[tf.Tensor]]
  totals: list[tf.Tensor]

  @property
  def tensors(self) -> list[tf.Tensor]:
    """Tensors that the backward pass produces."""
    return _tensors((self.loss, self.gradients))

  def mapped(self, made: Mapping[str, tf.Tensor]) -> "Copy":
    """Replaces each tensor by the one that `made` has for its name."""
    return tf.nest.map_structure(
      lambda t: made[t.name] if isinstance(t, tf.Tensor) else t,
      self,
      expand_composites=True,
    )


def _tensors(structure: Any) -> list[tf.Tensor]:
  flat = tf.nest.flatten(structure, expand_composites=True)
  return [value for value in flat if isinstance(value, tf.Tensor)]


@dataclasses.dataclass(frozen=True)
class Traced:
  """Trace of one microbatch's step, on `data`, the inputs of its graph."""

  whole: WholeBatch
  data: Sequence[tf.Tensor]
  results: Copy
  template: graph_copies.GraphTemplate

  def inputs(self, tensors: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Maps the name of each input to the tensor of this microbatch."""
    return {t.name: part for t, part in zip(self.data, tensors, strict=True)}

  def gated(
    self, given: dict[str, tf.Tensor], earlier: Copy
  ) -> dict[str, tf.Tensor]:
    """Delays the inputs until an earlier microbatch has ended."""
    with tf.control_dependencies(earlier.tensors):
      ended = tf.no_op(BEGIN)
    with tf.control_dependencies([ended]):
      return {t.name: tf.identity(given[t.name]) for t in self.data}

  def copy(self, scope: str, given: dict[str, tf.Tensor]) -> Copy:
    """Copies one more microbatch, except ops with results in `given`."""
    ops = {op for op in self.template.ops if f"{op}:0" not in given}
    return self.results.mapped(given | self.template.copy(scope, given, ops))


def _trace(step: Division, index: int, findings: Findings) -> Traced:
  model, parts = step.model, step.parts
  traced: list[Any] = []

  def microbatch_step(*tensors: tf.Tensor) -> None:
    data, rows, present = parts.structured(tensors)
    size = tensors[0].shape[0]
    whole = WholeBatch(
      model,
      tf.shape(tensors[0])[0] if size is None else size,
      parts.examples,
      kinds=iter(findings.kinds),
      present=present,
      with_regularization=step.forward is not None,
      deferred=findings.deferred,
      sized=findings.sized,
    )
    with (
      whole.metrics_kept(),
      states.cut(model, parts.states, rows) as assigned,
      recompute.applied(model, step.config),
      whole.reductions(),
    ):
      loss, gradients = forward_and_backward(
        model, data, step.forward, whole.share
      )
    traced.append((whole, loss, gradients, assigned))

  specs = [tf.TensorSpec(t.shape, t.dtype) for t in parts.inputs(index)]
  function = tf.function(microbatch_step, jit_compile=False, autograph=False)
  concrete = function.get_concrete_function(*specs)
  whole, loss, gradients, rows = traced[-1]
  data = list(concrete.inputs[: len(specs)])
  names = {tensor.name for tensor in data}
  statistics = _statistics(model, concrete.graph)
  results = Copy(
    loss=loss,
    gradients=[
      followed(gradient, findings.lookups, names)
      if isinstance(gradient, tf.IndexedSlices)
      else gradient
      for gradient in gradients
    ],
    shown=[share for _, share in whole.shown],
    statistics=[(op.inputs[0], op.inputs[1]) for op in statistics],
    states=rows,
    arguments=[update.tensors for update in whole.updates],
    totals=[total for _, total in whole.totals],
  )
  template = graph_copies.GraphTemplate(
    concrete.graph, _tensors(results), {op.name for op in statistics}
  )
  return Traced(whole, data, results, template)


def _statistics(model: keras.Model, graph: Any) -> list[tf.Operation]:
  """Lists the assignments of moving statistics; rejects other variables."""
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
  updates = []
  for op in graph_copies.assignments(graph):
    handle = outer.get(op.inputs[0].name)
    if id(handle) in moving and op.type == "AssignVariableOp":
      updates.append(op)
    elif id(handle) not in kept:
      paths = {id(v.value.handle): v.path for v in model.variables}
      name = paths.get(id(handle), op.inputs[0].name)
      raise ExtractionError(
        f"the step of model {model.name!r} cannot be split: its forward pass"
        f" updates variable {name!r}, which a microbatched step would do once"
        " for each microbatch; plan the whole step (microbatches=1), or update"
        " the variable in train_step",
        op=op.name,
      )
  return updates


def microbatches(step: Division) -> tuple[list[Copy], WholeBatch]:
  """Builds the microbatches in the current graph, each in its own scope.

  Also returns the whole-batch context of one of their traces.
  """
  step, traces = _traced(step)
  parts, config = step.parts, step.config
  values: dict[str, tf.Tensor] = {}
  given = []
  for index, trace in enumerate(traces):
    read = trace.template.captured(values, config.relay_scope(index))
    with tf.name_scope(_batch_scope(index, config)):
      given.append(read | trace.inputs(parts.inputs(index)))
  _add_totals(traces, given)
  copies: list[Copy] = []
  for index, trace in enumerate(traces):
    before = index - (config.max_in_flight or parts.count)
    if before >= 0:
      with tf.name_scope(_batch_scope(index)):
        given[index] |= trace.gated(given[index], copies[before])
    copies.append(trace.copy(f"{SCOPE}{index}/", given[index]))
  for number, variable in enumerate(parts.states):
    with tf.name_scope(f"keep/{variable.path}/"):
      rows = tf.concat([copy.states[number] for copy in copies], 0)
      variable.assign(rows)
  return copies, traces[0].whole


def _batch_scope(index: int, config: VariantConfig = WHOLE) -> str:
  """Returns the scope of a microbatch's slices, which records a given size."""
  scope = f"{SCOPE}{index}/{BATCH_SCOPE}/"
  if config.sizes is None:
    return scope
  return f"{scope}{SIZE_SCOPE}{config.sizes[index]}/"


def _add_totals(
  traces: Sequence[Traced], given: Sequence[dict[str, tf.Tensor]]
) -> None:
  """Copies the ops that count for the whole batch, and adds up their counts."""
  counts = []
  for index, (trace, known) in enumerate(zip(traces, given, strict=True)):
    totals = trace.results.totals
    ops = trace.template.needed_by(tensor.op for tensor in totals)
    if ops:
      known.update(trace.template.copy(f"{SCOPE}{index}/", known, ops))
    counts.append([known[tensor.name] for tensor in totals])
  for number, column in enumerate(zip(*counts, strict=True)):
    total = tf.add_n(column, name=f"whole_batch_{number}")
    for trace, known in zip(traces, given, strict=True):
      known[trace.whole.totals[number][0].name] = total


def _traced(step: Division) -> tuple[Division, list[Traced]]:
  """Traces the microbatches; slices states only if data is not enough."""
  parts = step.parts
  try:
    return step, _by_size(step)
  except Exception as error:
    examples = keras_inputs.static_batch_size(step.model)
    if not parts.is_known and examples is not None:
      return _traced(step._replace(parts=parts.with_known_size(examples)))
    if isinstance(error, ExtractionError) or not parts.is_known:
      raise
    variables = states.candidates(step.model, parts.examples)
    if not variables:
      raise
    try:
      return _with_states(step, variables)
    except Exception:
      raise error from None


def _with_states(
  step: Division, variables: Sequence[keras.Variable]
) -> tuple[Division, list[Traced]]:
  """Traces as `_traced`, also slicing those variables that the step assigns."""
  step = step._replace(parts=step.parts.with_states(variables))
  kept = assigned_states(step)
  if not kept:
    raise ExtractionError(
      f"model {step.model.name!r} keeps none of its variables"
    )
  if len(kept) < len(variables):
    return _with_states(step, kept)
  return step, _by_size(step)


def _by_size(step: Division) -> list[Traced]:
  """Traces each microbatch; microbatches of one size share a trace."""
  findings = examine(step)
  known: dict[Any, Traced] = {}
  traces = []
  for index in range(step.parts.count):
    size = step.parts.size(index)
    key = size if isinstance(size, int) else None
    if key not in known:
      known[key] = _trace(step, index, findings)
    traces.append(known[key])
  return traces
