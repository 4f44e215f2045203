"""From a Keras model to a plan: extraction, costs, placers, and the decision
whether several devices beat one at all. It changes nothing of the model but
building it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfplace import bounds, placers
from tfplace.core import constraints, protocols
from tfplace.core.cluster import Cluster
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Result
from tfplace.cost import op_graph
from tfplace.errors import ExtractionError, InfeasibleError, TfplaceError
from tfplace.extraction import TracedStep, trace_keras
from tfplace.extraction import traced as batch
from tfplace.extraction.keras import inputs
from tfplace.keras import grouping
from tfplace.plan import local_cluster as devices_lib
from tfplace.plan import plan as applied_lib
from tfplace.plan.plan import AppliedPlacement
from tfplace.plan.progress import Progress, check_verbose


@dataclasses.dataclass(frozen=True)
class PlanConfig:
  """What `place_model` was asked for.

  Attributes:
    cluster: what to plan for.
    strategy: name of a placer.
    budget_s: seconds for the proof of a bound and the placer.
    seed: fixes the placer's random choices.
    batch_size: to plan for; None takes the batch's own, else Keras's 32.
    keep_together: names of layers or patterns; each tuple is one device's.
    limited: whether the user set memory limits, which one device must pass.
    verbose: 1 prints each stage.
  """

  cluster: Cluster
  strategy: str
  budget_s: float
  seed: int
  batch_size: int | None
  keep_together: tuple[tuple[str, ...], ...] = ()
  limited: bool = False
  verbose: int = 0


def make_config(
  cluster: Cluster,
  strategy: str,
  batch_size: int | None,
  budget_s: float,
  seed: int,
  max_memory: Mapping[str, str | float] | None = None,
  keep_together: Iterable[grouping.Wish] = (),
  verbose: str | int = "auto",
) -> PlanConfig:
  """Checks what can be checked before there is a graph.

  Raises:
    TfplaceError: an unknown strategy (lists the choices), or a value that
      makes no sense.
  """
  if strategy not in placers.STRATEGIES:
    raise TfplaceError(
      f"unknown strategy {strategy!r}; choose one of"
      f" {', '.join(placers.STRATEGIES)}"
    )
  protocols.check_budget(budget_s)
  if batch_size is not None:
    protocols.check_count("batch_size", batch_size, 1)
  protocols.check_count("seed", seed, 0)
  if not isinstance(max_memory or {}, Mapping):
    raise TfplaceError(
      "max_memory is a mapping from devices to sizes, such as"
      f" {{'GPU:0': '10GiB'}}, not {max_memory!r:.60}"
    )
  return PlanConfig(
    constraints.with_max_memory(cluster, max_memory or {}),
    strategy,
    budget_s,
    seed,
    batch_size,
    grouping.check(keep_together),
    bool(max_memory),
    check_verbose(verbose),
  )


def trace(
  model: keras.Model, config: PlanConfig, kind: str, data: Any = None
) -> TracedStep:
  """Traces the step to plan on.

  Args:
    model: compiled, if it is the training step.
    config: gives the batch size.
    kind: the step, "train", "test" or "predict".
    data: one batch of it (tensors of any graph, or arrays), where there is one.

  Raises:
    ExtractionError: shapes, loss or optimizer are lacking.
  """
  sample = None
  if data is not None:
    sample = _sample(model, data, config.batch_size, kind)
  return trace_keras(model, config.batch_size, sample=sample, kind=kind)


def _sample(
  model: keras.Model, data: Any, batch_size: int | None, kind: str
) -> Any:
  """Zeros shaped like `data`: of a traced batch only shapes are known."""

  own_size = inputs.static_batch_size(model)

  def zeros(tensor: Any) -> Any:
    if tensor is None:
      return None
    shape = list(tensor.shape)
    if shape and (shape[0] is None or batch_size):
      shape[0] = batch_size or own_size or batch.DEFAULT_BATCH_SIZE
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

  if inputs.has_own_step(model, kind):
    return keras.tree.map_structure(zeros, data)
  x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
  x, y, weight = keras.tree.map_structure(zeros, (x, y, weight))
  if weight is not None:
    return x, y, weight
  return (x,) if y is None else (x, y)


def decide(
  model: keras.Model,
  traced: TracedStep,
  config: PlanConfig,
  progress: Progress,
) -> AppliedPlacement:
  """Searches a placement and compares it with the best single device.

  Args:
    model: whose slots stay beside their variables.
    traced: its step.
    config: what was asked for.
    progress: is told each stage.

  Raises:
    ApplyError: nothing is like a name of `config.keep_together`.
    InfeasibleError: nothing fits in memory.
    TfplaceError: as the placer and `Problem` do.
  """
  with progress.stage("costs", f" of {len(traced.graph_def.node):,} ops"):
    graph = op_graph(traced, config.cluster)
    graph = grouping.grouped(graph, traced, model, config.keep_together)
  with progress.stage("compiling the placers", ", once per installation"):
    placers.warm_up(config.strategy)
  with progress.stage("proof", " of how fast a step can be at best"):
    problem, left_s = bounds.tightened_within(
      Problem(graph, config.cluster), config.budget_s
    )
  told = f" by {config.strategy}, for up to {left_s:.0f} s"
  with progress.stage("search", told, is_expected=True):
    result = placers.place(
      problem, strategy=config.strategy, budget_s=left_s, seed=config.seed
    )
  with progress.stage("comparison", " with one device"):
    single = _single(problem, result, config)
  used = _devices(result.placement)
  beaten = applied_lib.is_beaten(result, single)
  one_device = len(used) == 1 or (config.strategy == "auto" and beaten)
  if one_device and single is not None and config.strategy == "auto":
    result = single
    used = _devices(result.placement)
  return applied_lib.planned(result, single, used, one_device, traced)


def _single(
  problem: Problem, result: Result, config: PlanConfig
) -> Result | None:
  """The best single device; None where none has the memory."""
  for tried in (result, *result.tried):
    if tried.strategy == "single":
      return tried
  try:
    return placers.place(problem, "single", budget_s=5.0, seed=config.seed)
  except InfeasibleError:
    return None


def _devices(placement: Placement) -> tuple[str, ...]:
  cluster = placement.problem.cluster
  names = [cluster.devices[i].name for i in np.unique(placement.devices)]
  return tuple(sorted(devices_lib.full_names({n: n for n in names}).values()))
