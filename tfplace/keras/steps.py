"""Steps of a Keras model for planning."""

import contextlib
import dataclasses
import logging
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace import cost
from tfplace.errors import ExtractionError, TfplaceError, shown
from tfplace.extraction import keras_inputs as inputs
from tfplace.extraction.traced import DEFAULT_BATCH_SIZE, TracedStep
from tfplace.graph.cluster import Cluster
from tfplace.graph.microbatches import (
  WHOLE,
  VariantConfig,
  proportional_sizes,
)
from tfplace.graph.problem import Problem
from tfplace.graph.progress import Progress, silent
from tfplace.graph.quantities import format_us
from tfplace.keras import layer_groups, state
from tfplace.plan import local_devices, local_step
from tfplace.plan.config import PlanConfig
from tfplace.plan.numeric_check import (
  check_equal,
  skip_reason,
  smaller_batch,
)
from tfplace.plan.search import on_one_device
from tfplace.plan.source import ModelSource
from tfplace.plan.stages import Stages
from tfplace.plan.steps import Steps, compiles
from tfplace.plan.variants import StepVariant, in_words
from tfplace.variants import fused_norm
from tfplace.variants.keras_step import trace_keras

_logger = logging.getLogger("tfplace")
# Seconds of running steps for their costs, and of one step in the numeric
# check, which runs two or three, per second of search; our choice.
_MEASURE_SHARE, _CHECK_SHARE = 0.25, 0.1
_LEAST_MEASURE_S = 0.5  # For one step variant; our choice.
_RUNS = 3  # Steps that a numeric check runs, typically.


@dataclasses.dataclass
class KerasSource(ModelSource):
  """Source of one kind of step ("train", "test" or "predict") of a model.

  Attributes:
    fuses: whether normalization is fused, which XLA does by itself.
  """

  step: str = "train"
  fuses: bool = False

  def trace(
    self,
    variant: VariantConfig = WHOLE,
    *,
    batch_size: int | None = None,
    precision: str | None = None,
    on_stage: Progress = silent,
  ) -> TracedStep:
    """Traces a step of the model as it is."""
    del precision
    sample, batch_size = None, batch_size or self.batch_size
    if self.sample is not None:
      sample = _sample(self.model, self.sample, batch_size, self.step)
    model = self.model
    with fused_norm.fused(model) if self.fuses else contextlib.nullcontext():
      return trace_keras(
        model,
        batch_size,
        kind=self.step,
        sample=sample,
        on_stage=on_stage,
        microbatches=variant,
      )

  def is_compiled_on(self, cluster: Cluster) -> bool:
    """Returns whether Keras compiles the model's steps on such devices."""
    return state.compiles_own_steps(self.model, cluster)


class KerasSteps(Steps):
  """Step variants of a Keras model.

  Optimizer slots share the device of their variables.

  Attributes:
    is_local: whether the devices are this process's, not described ones.
  """

  def __init__(
    self,
    source: KerasSource,
    cluster: Cluster,
    config: PlanConfig,
    is_local: bool,
  ) -> None:
    # CPUs gain 10%, too little for losses that differ by rounding.
    has_gpus = not cluster.is_cpu.all()
    fuses = has_gpus and not compiles(source, cluster, config)
    super().__init__(dataclasses.replace(source, fuses=fuses), cluster, config)
    self.is_local = is_local
    self._model = source.model
    self._measured: bool | None = None  # None until the first costs are known.
    self._measure_s = _MEASURE_SHARE * config.budget_s  # Remaining.
    self._whole: TracedStep | None = None  # None until it is traced.
    self._traced_s: dict[VariantConfig, float] = {}

  @property
  def suggests_microbatches(self) -> bool:
    """Returns whether microbatches may gain speed.

    Devices that share one physical device gain nothing.
    """
    names = [device.name for device in self.cluster.devices]
    shared = self.is_local and local_devices.shared_note(names)
    return self.training and not shared

  def open(self, variant: VariantConfig, show: Stages) -> StepVariant:
    """Traces a step variant and computes the costs of its ops.

    Raises:
      ApplyError: a name in `keep_together` matches nothing.
      TfplaceError: the step cannot be divided this way, or it cannot be run
        although other variants have measured costs.
    """
    variant = variant.over(self.cluster)
    how = f" {in_words(variant)}".removesuffix(" whole")
    kind = "training" if self.training else "inference"
    began = time.monotonic()
    with show("tracing", f" its {kind} step{how}"):
      traced = self.source.trace(variant)
    self._traced_s[variant] = time.monotonic() - began
    with show("costs", f" of {len(traced.graph_def.node):,} ops"):
      graph = cost.op_graph(
        traced,
        self.cluster,
        cost_model=self.config.costs,
        compile_units=self.compile_units,
      )
      groups = self.config.keep_together
      graph = layer_groups.grouped(graph, traced, self._model, groups)
    problem = Problem(graph, self.cluster)
    if self.config.measures_costs and self._measured is not False:
      with show("measuring", " its step on one device, for a few seconds"):
        problem = self._with_measured_costs(problem, traced)
    if variant.is_whole:
      self._whole = traced
    return StepVariant(problem, traced)

  def unplaced_us(self, show: Stages) -> float | None:
    """Returns the time of the whole step compiled by XLA, as `fit` runs it.

    Returns:
      None if costs are not measured, or `fit` does not compile the step.
    """
    asked = self.training and state.wants_jit(self._model)
    if not (asked and self._measured and self.is_local):
      return None
    with show("measuring", " the unplaced step with XLA"):
      return local_step.compiled_us(self._whole or self.source.trace())

  def unfused_note(self, show: Stages) -> str:
    """Says how long the whole step with Keras' ops takes on one device.

    Returns:
      "" if costs are measured, or no device holds the step.
    """
    if self._measured:
      return ""
    assert isinstance(self.source, KerasSource)
    with show("estimate", " of the step without fused normalization"):
      traced = dataclasses.replace(self.source, fuses=False).trace()
      graph = cost.op_graph(traced, self.cluster, cost_model=self.config.costs)
      single = on_one_device(Problem(graph, self.cluster), self.config.seed)
    if single is None:
      return ""
    time = format_us(single.evaluation.step_time_us)
    return f"With Keras' own normalization, one device takes {time}."

  def compare(
    self, step: StepVariant, variant: VariantConfig, show: Stages
  ) -> str:
    """Compares a microbatched step numerically with the whole step.

    A step that takes long here is compared with a smaller batch, traced anew.

    Returns:
      What was not compared, and why, or "".

    Raises:
      ExtractionError: the steps differ.
    """
    traced = step.traced
    if traced is None:
      raise ExtractionError(f"model {self._model.name!r} was not traced")
    graph, why = step.problem.graph, ""
    smaller, batch = None, traced.batch_size
    if variant.allow_batch_statistics and _has_statistics(self._model):
      why = "statistics of microbatches are allowed to differ"
    else:
      if inputs.static_batch_size(self._model) is None:
        # To trace both steps anew takes time, too.
        again_s = sum(
          self._traced_s.get(each, 0.0) for each in (WHOLE, variant)
        )
        check_s = _CHECK_SHARE * self.config.budget_s
        seconds = max(check_s, again_s / _RUNS)
        smaller = smaller_batch(graph, traced, seconds)
      share = (smaller or batch) / batch
      flight = variant.max_in_flight
      why = skip_reason(graph, traced, flight, share=share)
    if why:
      return f"not checked by numbers: {why}"
    with show("checking", f" the step {in_words(variant)} by numbers"):
      if smaller is None:
        check_equal(self._whole or self.source.trace(), traced)
        return ""
      scaled = variant
      if variant.sizes is not None:  # The sizes follow the batch.
        sizes = proportional_sizes(variant.sizes, smaller)
        scaled = dataclasses.replace(variant, sizes=sizes)
      whole = self.source.trace(batch_size=smaller)
      check_equal(whole, self.source.trace(scaled, batch_size=smaller))
    return f"checked by numbers with {smaller:,} of {batch:,} examples"

  def _with_measured_costs(
    self, problem: Problem, traced: TracedStep
  ) -> Problem:
    """Replaces estimated costs by measured costs if the step can be run.

    All step variants use the kind of costs of the first one, so that they are
    comparable. Each takes half of the seconds that are left.
    """
    began = time.monotonic()
    seconds = max(self._measure_s / 2, _LEAST_MEASURE_S)
    try:
      problem = local_step.measured_problem(problem, traced, seconds)
    except TfplaceError as error:
      if self._measured:
        raise
      self._measured = False
      _logger.warning(
        "model %r is placed by estimated costs: %s", traced.name, error
      )
    else:
      self._measured = True
    self._measure_s -= time.monotonic() - began
    return problem


def _has_statistics(model: keras.Model) -> bool:
  return any(
    isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    for layer in model._flatten_layers()
  )


def _sample(
  model: keras.Model, data: Any, batch_size: int | None, kind: str
) -> Any:
  """Returns zeros shaped like `data`, since a traced batch has only shapes."""
  own_size = inputs.static_batch_size(model)

  def zeros(tensor: Any) -> Any:
    if tensor is None:
      return None
    if isinstance(tensor, tf.RaggedTensor):
      raise ExtractionError(
        f"a batch of model {model.name!r} is ragged, and planning must know its"
        " shape: make it dense, by to_tensor() or by Dataset.padded_batch"
      )
    shape = list(tensor.shape)
    if shape and (shape[0] is None or batch_size):
      shape[0] = batch_size or own_size or DEFAULT_BATCH_SIZE
    if None in shape:
      raise ExtractionError(
        f"a batch of model {model.name!r} has shape {tuple(tensor.shape)}, and"
        " planning must know all but the first dimension: plan with"
        " plan_model(model, sample=...) and give place_model that plan"
      )
    dtype = tf.as_dtype(tensor.dtype)
    if dtype == tf.string:
      return np.full(shape, b"", object)
    return np.zeros(shape, dtype.as_numpy_dtype)

  leaves = keras.tree.flatten(data)
  is_own = inputs.has_own_step(model, kind)
  is_batch = any(leaf is not None for leaf in leaves) and all(
    leaf is None or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
    for leaf in leaves
  )
  if not is_batch or (not is_own and isinstance(data, tuple) and data[3:]):
    given = " ".join(shown(data).split())
    raise ExtractionError(
      f"sample is {given}; it must be a batch of arrays x, (x, y) or (x, y,"
      " sample_weight), such as what model.fit takes"
    )
  batch = keras.tree.map_structure(zeros, data)
  if is_own:
    return batch
  x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
  if weight is not None:
    return x, y, weight
  return (x,) if y is None else (x, y)
