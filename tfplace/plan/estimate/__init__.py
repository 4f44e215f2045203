"""Estimates: memory, step time and the devices a step needs, without a search.

One trace serves all cards. A further step variant, such as microbatches, is
another traced graph; `step.estimate_step` chooses them.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from tfplace.errors import TfplaceError, shown
from tfplace.graph.estimate import Estimate, LargestBatch
from tfplace.graph.placement import Placement
from tfplace.graph.progress import Progress, silent
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import PlanConfig, StepOptions
from tfplace.plan.estimate import fits
from tfplace.plan.estimate.batch import find_largest_batch
from tfplace.plan.estimate.cards import Card, Traces, cards_of, cluster_card
from tfplace.plan.estimate.step import estimate_step
from tfplace.plan.precisions import PRECISIONS
from tfplace.plan.source import ModelSource, open_source

if TYPE_CHECKING:
  import keras


def estimate(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike | None = None,
  *,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  precisions: Sequence[str] | None = None,
  **options: Unpack[StepOptions],
) -> Estimate:
  """Estimates memory and step time of a model's step, without a search.

  Args:
    model: a Keras 3 model, the name of a zoo model, or the path of a Keras
      file (.keras), a GraphDef (.pb, .pbtxt), a SavedModel directory or an op
      graph (.json, .json.gz). A Keras model that is not compiled is estimated
      for inference.
    cluster: cluster to estimate for: a `Cluster`, a preset or a file. None
      estimates every GPU of the presets. An op graph has the costs of its own.
    training: whether to estimate the training step or inference.
    sizes: additional sizes of a zoo model, such as {"length": 20}.
    sample: sample batch of a Keras model that does not define its inputs.
    precisions: names of dtype policies: "float32", "mixed_float16" or
      "mixed_bfloat16". The model is rebuilt in each. None is the model's own.
    **options: `StepOptions`, such as `batch_size`.

  Returns:
    The estimate: sizes in bytes, times in microseconds.

  Raises:
    ExtractionError: the model cannot be traced, or not rebuilt in a precision.
    FormatError: the preset is unknown, or the file is invalid.
    TfplaceError: another argument is invalid.
  """
  config = PlanConfig.from_options(options, StepOptions)
  rows = cards_of(cluster)
  source = open_source(
    model,
    training=training,
    batch_size=config.batch_size,
    sizes=sizes,
    sample=sample,
  )
  return estimate_steps(source.loaded(), rows, config, precisions=precisions)


def largest_batch(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike,
  *,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  precision: str | None = None,
  **options: Unpack[StepOptions],
) -> LargestBatch:
  """Finds the largest batch whose step fits on a cluster.

  The batch fits by simulation, and one more example does not: neither on one
  device nor by the cheap placers on all. A
  search (`tfplace.place`) may fit more.

  Args:
    model: model as in `estimate`.
    cluster: a `Cluster`, a preset or a file.
    training: whether the step is a training step or inference.
    sizes: additional sizes of a zoo model.
    sample: sample batch of a Keras model that does not define its inputs.
    precision: dtype policy; None is the model's own.
    **options: `StepOptions`. The search begins with `batch_size`, and one
      microbatch is in flight.

  Raises:
    InfeasibleError: not even the smallest batch fits.
    ExtractionError: the model cannot be traced.
    TfplaceError: an argument is invalid, or memory does not limit the batch.
  """
  config = PlanConfig.from_options(options, StepOptions)
  if not config.variant.is_whole:
    variant = dataclasses.replace(config.variant, max_in_flight=1)
    config = dataclasses.replace(config, variant=variant)
  check_precisions([] if precision is None else [precision])
  source = open_source(model, training=training, sizes=sizes, sample=sample)
  source = source.loaded()
  return find_largest_batch(
    Traces(source, config, precision),
    cluster_card(find_cluster(cluster)),
    config.batch_size or source.trace().batch_size or 1,
  )


def check_precisions(names: Sequence[str]) -> None:
  """Raises TfplaceError for an unknown dtype policy; lists the choices."""
  if isinstance(names, str):
    raise TfplaceError(
      f"precisions is {shown(names)}; it must be a sequence of names"
    )
  for name in names:
    if name not in PRECISIONS:
      raise TfplaceError(
        f"unknown precision {shown(name)}; choose from {', '.join(PRECISIONS)}"
      )


def estimate_steps(
  source: ModelSource,
  rows: Sequence[Card],
  config: PlanConfig,
  *,
  precisions: Sequence[str] | None = None,
  on_stage: Progress = silent,
) -> Estimate:
  """Estimates a loaded model on each card.

  If the requested step is whole, other variants are tried where it does not
  fit. `precisions` are dtype policies; None is the model's own.
  """
  check_precisions(precisions or [])
  steps = []
  for precision in precisions or (None,):
    traces = Traces(source, config, precision, on_stage)
    traced, step = estimate_step(traces, rows)
    steps.append(step)
  return Estimate(
    model=traced.name,
    batch_size=config.batch_size or traced.batch_size,
    training=traced.training,
    steps=tuple(steps),
    notes=source.notes,
  )


def one_device_placement(traces: Traces, card: Card) -> Placement:
  """Returns the placement that an estimate simulates on one device."""
  (graph,) = traces.graphs(traces.trace(traces.config.variant), [card])
  return fits.on_one_device(graph, card).schedule.placement
