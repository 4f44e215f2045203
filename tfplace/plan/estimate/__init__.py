"""Estimates: memory, step time and the devices a step needs, without a search.

One trace serves all cards. A further step variant, such as microbatches, is
another traced graph; `step.estimate_step` chooses them.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfplace.core.argument_checks import check_count
from tfplace.core.estimate import Estimate, LargestBatch
from tfplace.core.microbatches import WHOLE, VariantConfig
from tfplace.core.placement import Placement
from tfplace.core.progress import Progress, silent
from tfplace.core.recompute import NONE, recompute_config
from tfplace.errors import TfplaceError, shown
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import AUTO
from tfplace.plan.estimate import cards, fits
from tfplace.plan.estimate.batch import find_largest_batch
from tfplace.plan.estimate.cards import Card, cards_of
from tfplace.plan.estimate.step import estimate_step
from tfplace.plan.model_source import ModelSource, open_source
from tfplace.plan.precisions import PRECISIONS
from tfplace.plan.sources import DEFAULT_COSTS, check_compile, check_costs

if TYPE_CHECKING:
  import keras

  from tfplace.extraction.traced import TracedStep


def estimate(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike | None = None,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  precisions: Sequence[str] | None = None,
  costs: str = DEFAULT_COSTS,
  compile: str = AUTO,
  allow_batch_statistics: bool = False,
) -> Estimate:
  """Estimates memory and step time of a model's step, without a search.

  Args:
    model: a Keras 3 model, the name of a zoo model, or the path of a Keras
      file (.keras), a GraphDef (.pb, .pbtxt) or a SavedModel directory. A
      Keras model that is not compiled is estimated for inference.
    cluster: cluster to estimate for: a `Cluster`, a preset or a file. None
      estimates every GPU of the presets.
    batch_size: examples per step. None selects the model's default.
    training: whether to estimate the training step or inference.
    sizes: additional sizes of a zoo model, such as {"length": 20}.
    sample: sample batch of a Keras model that does not define its inputs.
    precisions: names of dtype policies: "float32", "mixed_float16" or
      "mixed_bfloat16". The model is rebuilt in each. None is the model's own.
    costs: name of the cost model.
    compile: "xla" fuses ops into units that XLA compiles, "none" does not;
      "auto", the default, does so for Keras models, which Keras compiles on
      GPUs.
    allow_batch_statistics: whether BatchNormalization may use the statistics
      of a microbatch.

  Returns:
    The estimate: sizes in bytes, times in microseconds.

  Raises:
    ExtractionError: the model cannot be traced, or not rebuilt in a precision.
    FormatError: the preset is unknown, or the file is invalid.
    TfplaceError: another argument is invalid.
  """
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  check_costs(costs)
  check_compile(compile)
  rows = cards_of(cluster)
  source = open_source(model, training=training, sizes=sizes, sample=sample)
  return estimate_steps(
    source.loaded(),
    rows,
    batch_size=batch_size,
    precisions=precisions,
    microbatches=VariantConfig(allow_batch_statistics=allow_batch_statistics),
    costs=costs,
    compile=compile,
  )


def largest_batch(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  sample: Any = None,
  precision: str | None = None,
  microbatches: int = 1,
  recompute: str | Sequence[str | Sequence[str]] = NONE,
  costs: str = DEFAULT_COSTS,
  compile: str = AUTO,
  allow_batch_statistics: bool = False,
) -> LargestBatch:
  """Finds the largest batch whose step fits on a cluster.

  The batch fits by simulation, and one more example does not: neither on one
  device nor by the cheap placers on all. A
  search (`tfplace.place`) may fit more.

  Args:
    model: see `estimate`.
    cluster: a `Cluster`, a preset or a file.
    batch_size: batch to begin with. None selects the model's default.
    training: see `estimate`.
    sizes: see `estimate`.
    sample: see `estimate`.
    precision: dtype policy; None is the model's own.
    microbatches: number of microbatches, one of them in flight.
    recompute: see `tfplace.extract`.
    costs: see `estimate`.
    compile: see `estimate`.
    allow_batch_statistics: see `estimate`.

  Raises:
    InfeasibleError: not even the smallest batch fits.
    ExtractionError: the model cannot be traced.
    TfplaceError: an argument is invalid, or memory does not limit the batch.
  """
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  check_costs(costs)
  check_compile(compile)
  card = cards.cluster_card(find_cluster(cluster))
  config = VariantConfig.of(
    microbatches, None, allow_batch_statistics, recompute_config(recompute)
  )
  if not config.is_whole:
    config = dataclasses.replace(config, max_in_flight=1)
  check_precisions([] if precision is None else [precision])
  source = open_source(model, training=training, sizes=sizes, sample=sample)
  source = source.loaded()
  return find_largest_batch(
    source,
    card,
    batch_size=batch_size or source.trace().batch_size or 1,
    precision=precision,
    microbatches=config,
    costs=costs,
    compile=compile,
  )


def check_precisions(names: Sequence[str]) -> None:
  """Checks names of dtype policies.

  Raises:
    TfplaceError: a name is unknown. The message lists the choices.
  """
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
  *,
  batch_size: int | None = None,
  precisions: Sequence[str] | None = None,
  microbatches: VariantConfig = WHOLE,
  costs: str = DEFAULT_COSTS,
  compile: str = AUTO,
  on_stage: Progress = silent,
) -> Estimate:
  """Estimates a loaded model on each card.

  Args:
    source: the model.
    rows: the cards.
    batch_size: examples per step; None is the model's own.
    precisions: dtype policies; None is the model's own.
    microbatches: microbatches of the step. If there is one, others are tried
      where the step does not fit.
    costs: name of the cost model.
    compile: see `estimate`.
    on_stage: called at the start of each stage.

  Raises:
    TfplaceError: a precision is unknown, or the step cannot be traced.
  """
  check_precisions(precisions or [])
  steps = []
  names: Sequence[str | None] = precisions or [None]
  for name in names:

    def trace(
      config: VariantConfig, precision: str | None = name
    ) -> "TracedStep":
      return source.trace(batch_size, config, precision, on_stage)

    traced, step = estimate_step(
      trace,
      rows,
      microbatches,
      precision=name or source.precision,
      can_split=source.can_split,
      costs=costs,
      compile_units=source.compiles(compile, rows[0].cluster),
      on_stage=on_stage,
    )
    steps.append(step)
  return Estimate(
    model=traced.name,
    batch_size=batch_size or traced.batch_size,
    training=traced.training,
    steps=tuple(steps),
    notes=source.notes,
  )


def one_device_placement(
  traced: "TracedStep",
  card: Card,
  costs: str = DEFAULT_COSTS,
  compile_units: bool = False,
) -> Placement:
  """Returns the placement that an estimate simulates on one device."""
  (graph,) = cards.graphs_of(traced, [card], costs, compile_units=compile_units)
  return fits.on_one_device(graph, card).schedule.placement
