"""Proof that a step can run in microbatches.

The forward pass is traced at two batch sizes, and the batch axis is followed
through both graphs (`batch_axis`): from the data to the values of the losses,
the updates of the metrics, and the per-example states. The findings control the
later trace of a microbatch: the reduction of each added loss, the metrics that
the whole batch must update, and the lookups that are the same in every
microbatch.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.framework import func_graph

from tfplace.errors import ExtractionError
from tfplace.extraction.layers import LayerRecorder
from tfplace.graph.microbatches import TEMPLATE
from tfplace.variants.microbatches import (
  batch_axis,
  custom_gradients,
  graph_copies,
  states,
)
from tfplace.variants.microbatches.batch_axis import values as axis_values
from tfplace.variants.microbatches.batch_axis.values import (
  FIXED,
  RULES,
  Fixed,
  Handle,
  Mixed,
  Mixes,
  Reduced,
  Rows,
  Sized,
  State,
  Value,
)
from tfplace.variants.microbatches.custom_gradients import CustomGradient
from tfplace.variants.microbatches.forward import run_forward
from tfplace.variants.microbatches.parts import Division, Parts
from tfplace.variants.microbatches.whole_batch import (
  Path,
  WholeBatch,
  compiled_metrics,
)

_UNKNOWN = (4, 32)  # examples in the two traces if the batch size is unknown
_LEAST = 2  # examples in a trace; broadcasting would hide a batch axis of 1
_WHOLE = 6  # examples in the batch that the traced microbatch belongs to
_LENGTH = 16  # replaces every other unknown dimension
_NO_VALUES = "has no value for each example"
_WAY_OUT = (
  "plan the whole step (microbatches=1), or let each example be computed by"
  " itself"
)


@dataclasses.dataclass(frozen=True)
class Findings:
  """Findings about a step that can run in microbatches.

  Attributes:
    kinds: reduction over examples of each added loss ("sum", "mean",
      "weights"), in the order of tracing.
    deferred: ids of metrics whose update is not a sum over examples.
    sized: paths of the factors of losses that are numbers of examples.
    lookups: name of the index tensor of each lookup in the forward pass ->
      whether the indices depend on the batch.
  """

  kinds: tuple[str, ...]
  deferred: frozenset[int]
  sized: frozenset[Path]
  lookups: Mapping[str, bool]


def examine(step: Division) -> Findings:
  """Examines a step; of its batch, only shapes, dtypes and states are used.

  Raises:
    ExtractionError: the step mixes examples; names the layer and the op.
  """
  deferred: frozenset[int] = frozenset()
  sized: frozenset[Path] = frozenset()
  sizes = _sizes(step.parts)
  while True:
    traces = [_Trace(step, size, deferred, sized) for size in sizes]
    if not batch_axis.have_same_ops(*(trace.graph for trace in traces)):
      # The first call builds missing layers, which adds ops that later traces
      # do not have.
      traces[0] = _Trace(step, sizes[0], deferred, sized)
    first, second = (trace.whole.factors for trace in traces)
    if by_size := {path for path in first if first[path] != second.get(path)}:
      sized |= by_size
      continue
    findings = _Checked(step, traces).findings()
    if findings.deferred <= deferred:
      return dataclasses.replace(findings, deferred=deferred)
    deferred |= findings.deferred


def _sizes(parts: Parts) -> tuple[int, int]:
  if not parts.is_known:
    return _UNKNOWN
  size = max(parts.size(0), _LEAST)
  return size, max(parts.examples, size + 1)


def assigned_states(step: Division) -> list[keras.Variable]:
  """Lists variables of the batch that the step assigns, if it can be traced."""
  trace = _Trace(step, _sizes(step.parts)[0])
  return [v for i, v in enumerate(step.parts.states) if i in trace.states]


@dataclasses.dataclass
class _Examined(WholeBatch):
  """Replaces added losses by placeholders; `terms` holds pairs of both.

  `factors` holds the values of constant factors of losses by their paths.
  """

  terms: list[tuple[tf.Tensor, tf.Tensor]] = dataclasses.field(
    default_factory=list
  )
  factors: dict[Path, float] = dataclasses.field(default_factory=dict)

  def _is_factor(self, factor: tf.Tensor, path: Path) -> bool:
    is_factor = super()._is_factor(factor, path)
    if is_factor:
      self.factors[path] = float(tf.get_static_value(factor))
    return is_factor

  def _additional(self, loss: tf.Tensor) -> tf.Tensor:
    share = tf.compat.v1.placeholder(loss.dtype, (), name="share")
    self.terms.append((loss, share))
    return share


class _Trace:
  """The forward pass of a step at one batch size."""

  def __init__(
    self,
    step: Division,
    size: int,
    deferred: frozenset[int] = frozenset(),
    sized: frozenset[Path] = frozenset(),
  ) -> None:
    model, parts, forward = step.model, step.parts, step.forward
    self.size = size
    outer = tf.compat.v1.get_default_graph()
    self.graph: Any = func_graph.FuncGraph(TEMPLATE)
    self.recorder = LayerRecorder(self.graph, model)
    with self.graph.as_default(), self.graph.device(self.recorder):
      self.data = [_placeholder(t, size) for t in parts.tensors]
      (x, y, weight), rows, _ = parts.structured(self.data)
      self.whole = _Examined(
        model,
        size,
        _WHOLE,
        with_regularization=forward is not None,
        deferred=deferred,
        sized=sized,
      )
      with (
        self.whole.reductions(),
        states.cut(model, parts.states, rows) as self.states,
      ):
        try:
          loss, finish = run_forward(model, (x, y, weight), forward)
          self.loss = self.whole.share(loss)
          finish()
        finally:  # Its error explains others.
          check_captures(model, self.graph, outer, parts)
      self.gradients = custom_gradients.trace(self.graph)

  def assigned(self) -> list[tf.Operation]:
    return [
      op
      for op in self.graph.get_operations()
      if op.op_def.is_stateful
      and op.type != "ReadVariableOp"
      and any(t.dtype == tf.resource for t in op.inputs)
    ]


def _placeholder(tensor: tf.Tensor, size: int) -> tf.Tensor:
  shape = [_LENGTH if d is None else d for d in tensor.shape[1:]]
  return tf.compat.v1.placeholder(tensor.dtype, [size, *shape])


class _Checked:
  """Two traces of a step, and the abstract values of their tensors."""

  def __init__(self, step: Division, traces: Sequence[_Trace]) -> None:
    model = self._model = step.model
    self._trace, self._second = traces
    self._sizes = traces[0].size, traces[1].size
    self._layers_of = self._trace.recorder.of_op
    self._normalizing = {
      layer.name
      for layer in model._flatten_layers()
      if step.config.allow_batch_statistics
      and isinstance(layer, keras.layers.BatchNormalization)
    }
    self._owners = _owners(model, self._trace.graph)
    given: dict[str, Value] = {t.name: Rows(0) for t in self._trace.data}
    given |= {name: Handle(name) for name in self._owners}
    given |= {t.name: Reduced("sum") for _, t in self._trace.whole.terms}
    try:
      self._values = batch_axis.follow(
        self._trace.graph,
        self._second.graph,
        self._sizes,
        given,
        upstream={
          name: output
          for gradient in self._trace.gradients
          for name, output in gradient.upstream.items()
        },
        has_statistics=self._has_statistics,
      )
    except Mixes as mixes:
      raise ExtractionError(
        f"the step of model {model.name!r} cannot be split: it {mixes};"
        f" {_WAY_OUT}"
      ) from None

  def _has_statistics(self, op: str) -> bool:
    return not self._normalizing.isdisjoint(self._layers_of(op))

  def findings(self) -> Findings:
    whole = self._trace.whole
    for tensor in whole.values:
      self._check(tensor, _is_per_example, f"its loss {_NO_VALUES}")
    terms = [
      self._check(
        loss,
        lambda value: isinstance(value, Reduced | Fixed),
        f"the loss {loss.op.name!r} that is added is neither a sum nor a mean"
        " over examples",
      )
      for loss, _ in whole.terms
    ]
    for tensor in (self._trace.loss, *(total for _, total in whole.totals)):
      self._check(
        tensor,
        lambda value: not isinstance(value, Mixed),
        "its loss mixes examples",
      )
    for rows in self._trace.states.values():
      self._check(rows, _is_per_example, f"a state that it keeps {_NO_VALUES}")
    for gradient in self._trace.gradients:
      self._check_gradient(gradient)
    for update in whole.updates:
      what = f"metric {update.metric.name!r} {_NO_VALUES}"
      for tensor in update.tensors:
        if tensor.shape.rank:
          self._check(tensor, _is_per_example, what)
    return Findings(
      tuple(v.kind if isinstance(v, Reduced) else "weights" for v in terms),
      self._deferred(),
      self._trace.whole.sized,
      self._lookups(),
    )

  def _check_gradient(self, gradient: CustomGradient) -> None:
    """Refuses a custom gradient in which known ops mix examples."""
    for tensor in gradient.gradients:
      value = self._values[tensor.name]
      if isinstance(value, Mixed) and value.op_type in RULES:
        layers = self._layers_of(gradient.op.name)
        place = f" of layer {layers[0]!r}" if layers else ""
        raise ExtractionError(
          f"the step of model {self._model.name!r} cannot be split: a custom"
          f" gradient{place} mixes the examples of a batch: its"
          f" {value.op_type} {value.why}; {_WAY_OUT}",
          op=gradient.op.name,
        )

  def _check(
    self, tensor: tf.Tensor, is_allowed: Callable[[Value], bool], why: str
  ) -> Value:
    """Returns the value of a tensor; refuses the step if it is not allowed."""
    value, op = self._values[tensor.name], tensor.op.name
    if is_allowed(value):
      return value
    if isinstance(value, Mixed):
      layers, op = self._layers_of(value.op), value.op
      place = f"layer {layers[0]!r}" if layers else "the loss"
      if layers and layers[0] == self._model.name:
        place = "its call()"
      why = (
        f"{place} mixes the examples of a batch: its {value.op_type}"
        f" {value.why} (op {value.op!r})"
      )
    raise ExtractionError(
      f"the step of model {self._model.name!r} cannot be split: {why};"
      f" {_WAY_OUT}",
      op=op,
    )

  def _deferred(self) -> frozenset[int]:
    return frozenset(
      self._owners[tensor.name]
      for op in self._trace.assigned()
      for tensor in op.inputs
      if tensor.name in self._owners and not self._adds_up(op, tensor.name)
    )

  def _adds_up(self, op: tf.Operation, handle: str) -> bool:
    if len(op.inputs) != 2 or op.inputs[0].name != handle:
      return False
    value = self._values[op.inputs[1].name]
    if op.type == "AssignVariableOp":
      return value == State(handle, added=True)
    if op.type == "AssignAddVariableOp":
      second = self._second.graph.get_operation_by_name(op.name)
      pair = axis_values.OpPair(op, second, self._sizes)
      return batch_axis.sums.is_additive(pair, 1, value)
    return False

  def _lookups(self) -> dict[str, bool]:
    return {
      op.inputs[1].name: self._values[op.inputs[1].name] != FIXED
      for op in self._trace.graph.get_operations()
      if op.type in ("GatherV2", "ResourceGather")
    }


def _is_per_example(value: Value) -> bool:
  """Returns whether the first axis has an independent entry per example."""
  is_rows = isinstance(value, Rows) and value.uniform and value.axis == 0
  return is_rows or value == Rows(0) or isinstance(value, Fixed | Sized)


def _owners(model: keras.Model, graph: Any) -> dict[str, int]:
  """Maps the handle of each metric variable to the `id` of its metric."""
  owners = {
    id(variable.value.handle): id(metric)
    for metric in compiled_metrics(model)
    for variable in metric.variables
  }
  return {
    inner.name: owners[id(outer)]
    for outer, inner in graph.captures
    if id(outer) in owners
  }


def check_captures(
  model: keras.Model, graph: Any, outer: tf.Graph, parts: Parts
) -> None:
  """Rejects a forward function that reads the batch instead of its arguments.

  `graph`, the trace of the function, must capture no tensors of the whole batch
  from `outer`, the graph around it.
  """
  batch = {tensor.name for tensor in parts.sources}
  for source, inner in graph.captures:
    if getattr(source, "graph", None) is not outer:
      continue
    if source.dtype != tf.resource and not batch.isdisjoint(
      graph_copies.ancestors(source)
    ):
      raise ExtractionError(
        f"the step of model {model.name!r} cannot be split: its forward"
        f" function uses {source.name!r}, which is of the whole batch: it must"
        " compute with its arguments x, y, sample_weight alone",
        op=inner.op.name,
      )
