"""Op graphs with costs from all supported model sources.

This module joins the model zoo, `extraction`, `cost` and the graph cache. It
imports TensorFlow only to trace a step.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfplace.core.argument_checks import check_count
from tfplace.core.cluster import Cluster
from tfplace.core.given_batch import GivenBatch
from tfplace.core.microbatches import (
  WHOLE,
  MicrobatchConfig,
  check_in_flight,
)
from tfplace.core.op_graph import OpGraph
from tfplace.core.progress import Progress, silent
from tfplace.core.recompute import NONE, recompute_config
from tfplace.cost import registry
from tfplace.errors import ExtractionError, TfplaceError, shown
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.graph_cache import GraphCache
from tfplace.plan.graph_keys import content_key

if TYPE_CHECKING:
  import keras

  from tfplace.extraction.traced import TracedStep

MICROBATCH_KINDS = ("model", "keras_model")  # Sources with microbatches.
KINDS = ("model", "saved_model", "keras_model", "graph_def")
DEFAULT_CLUSTER = "v100x1"
DEFAULT_COSTS = registry.DEFAULT


def trace(
  kind: str,
  source: str,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  microbatches: MicrobatchConfig = WHOLE,
  sample: GivenBatch | None = None,
  allow_side_effects: bool = False,
  on_stage: Progress = silent,
) -> "TracedStep":
  """Traces one step of a zoo model or of a model file.

  Args:
    kind: kind of the source, one of `KINDS`.
    source: name of a zoo model, a SavedModel directory, a Keras file, or a
      GraphDef file.
    batch_size: examples per step. None selects the model's default.
    training: whether to trace the training step or inference. Ignored for a
      SavedModel and a GraphDef.
    sizes: additional sizes of a zoo model, such as {"length": 20}.
    microbatches: microbatches of the training step; see `check_microbatches`.
    sample: batch of a Keras file.
    allow_side_effects: whether a SavedModel or GraphDef may contain ops that
      access files, processes or Python. TensorFlow may run them on loading.
    on_stage: called at the start of each stage.

  Raises:
    ExtractionError: the step cannot be traced. The message names the file or
      model and the problem.
  """
  if sizes and kind != "model":
    raise ExtractionError(
      f"sizes {sorted(sizes)} are given for {source!r}, which is no zoo model"
    )
  if sample is not None and kind != "keras_model":
    raise ExtractionError(
      f"a batch is described for {source!r}, which is no Keras file and says"
      " its own shapes"
    )
  check_microbatches(microbatches, kind, source, training)
  on_stage(f"building {source}" if kind == "model" else f"loading {source}")
  # A command loads TensorFlow in that stage, without its notices.
  from tfplace import extraction as tracing
  from tfplace.extraction.keras_step import fresh_names

  if kind == "saved_model":
    return tracing.trace_saved_model(
      source, batch_size, allow_side_effects=allow_side_effects
    )
  if kind == "graph_def":
    return tracing.trace_graph_def(
      source, batch_size, allow_side_effects=allow_side_effects
    )
  with fresh_names():
    if kind == "model":
      return _trace_zoo(
        source, batch_size, training, sizes or {}, microbatches, on_stage
      )
    if kind == "keras_model":
      return tracing.trace_keras_file(
        source,
        batch_size,
        training,
        sample,
        on_stage,
        microbatches,
      )
  raise ExtractionError(f"unknown kind of source {kind!r}: one of {KINDS}")


def check_microbatches(
  microbatches: MicrobatchConfig, kind: str, source: str, training: bool
) -> None:
  """Checks that the step can be divided into microbatches.

  Raises:
    ExtractionError: the source cannot be split, or a number is invalid.
  """
  microbatches.check()
  is_trained = kind in MICROBATCH_KINDS and training
  if not (microbatches.recompute.is_none or is_trained):
    what = f"a traced graph ({kind})" if training else "inference"
    raise ExtractionError(
      f"recompute is {microbatches.recompute}, and {source!r} is {what}: only"
      " training steps of Keras models and of the zoo have it; leave recompute"
      " out"
    )
  if microbatches.is_whole and microbatches.max_in_flight is None:
    return
  if kind not in MICROBATCH_KINDS:
    name = "max_in_flight" if microbatches.is_whole else "microbatches"
    value = (
      microbatches.max_in_flight
      if microbatches.is_whole
      else microbatches.count
    )
    raise ExtractionError(
      f"{name} is {value}, and {source!r} ({kind}) is a graph"
      " that was traced already: only steps of Keras models and of the zoo can"
      f" be split into microbatches; leave {name} out"
    )
  if not training:
    raise ExtractionError(
      f"inference of {source!r} is asked for: only a training step is split"
      " into microbatches"
    )


def _trace_zoo(
  name: str,
  batch_size: int | None,
  training: bool,
  sizes: Mapping[str, int],
  microbatches: MicrobatchConfig,
  on_stage: Progress,
) -> "TracedStep":
  import dataclasses

  from tfplace import extraction as tracing
  from tfplace import models

  if "batch_size" in sizes:
    raise ExtractionError(
      f"model {name!r}: batch_size={sizes['batch_size']} is given among its"
      " sizes; give the batch size by itself (--batch_size)"
    )
  zoo = models.build(name, batch_size, **sizes)
  traced = tracing.trace_keras(
    zoo.model,
    zoo.batch_size,
    training,
    zoo.sample(seed=0),
    on_stage=on_stage,
    microbatches=microbatches,
  )
  return dataclasses.replace(traced, name=name)


def check_costs(name: str, also: Sequence[str] = ()) -> None:
  """Checks that a cost model exists and requires no measurement.

  Args:
    name: name of a cost model, or one of `also`.
    also: further choices of the caller.

  Raises:
    TfplaceError: the name is unknown. The message lists the choices.
  """
  models = [model for model in registry.COST_MODELS if model != "measured"]
  names = [*also, *models]
  if not isinstance(name, str) or name not in names:
    raise TfplaceError(
      f"unknown cost model {shown(name)}; choose one of {', '.join(names)}"
    )


def op_graph(
  traced: "TracedStep",
  cluster: Cluster,
  on_stage: Progress = silent,
  costs: str = DEFAULT_COSTS,
) -> OpGraph:
  """Returns the op graph of a traced step with costs for a cluster's kinds."""
  from tfplace.cost import assemble

  return assemble.op_graph(traced, cluster, on_stage, costs)


def load_or_extract(
  kind: str,
  source: str,
  cluster: Cluster,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  costs: str = DEFAULT_COSTS,
  microbatches: MicrobatchConfig = WHOLE,
  sample: GivenBatch | None = None,
  cache: GraphCache | None = None,
  needs_trace: bool = False,
  traced: "TracedStep | None" = None,
  allow_side_effects: bool = False,
  on_stage: Progress = silent,
) -> "tuple[OpGraph, TracedStep | None]":
  """Loads the op graph from the cache, or extracts it.

  Args:
    kind, source, batch_size, training, sizes, microbatches, sample: see
      `trace`.
    cluster: cluster whose device kinds get costs.
    costs: name of a cost model.
    cache: graph cache. None always extracts.
    needs_trace: whether the traced step is required; it is never cached.
    traced: step from an earlier call with the same arguments and another
      cluster.
    allow_side_effects: see `trace`.
    on_stage: called at the start of each stage, never for a cached graph.

  Returns:
    The op graph, and the traced step, or None for a cached graph.

  Raises:
    ExtractionError: extraction fails. The message names the file or model and
      the problem.
  """
  check_costs(costs)
  check_microbatches(microbatches, kind, source, training)
  asked: dict[str, Any] = {
    "batch_size": batch_size,
    "training": training,
    "sizes": sizes,
    "microbatches": microbatches,
    "sample": sample,
  }
  find_key = functools.partial(
    content_key, kind, source, cluster, **asked, costs=costs
  )
  key = find_key() if cache else None
  graph = cache.load(key) if cache and key else None
  if graph is not None and not needs_trace:
    return graph, traced
  if traced is None:
    traced = trace(
      kind,
      source,
      **asked,
      allow_side_effects=allow_side_effects,
      on_stage=on_stage,
    )
  if graph is None or not _is_of(graph, traced):
    graph = op_graph(traced, cluster, on_stage, costs)
    if cache and key and find_key() == key:  # No file has changed meanwhile.
      cache.store(key, graph)
  return graph, traced


def _is_of(graph: OpGraph, traced: "TracedStep") -> bool:
  nodes = traced.graph_def.node
  return len(nodes) == graph.num_ops and all(
    node.name == name and node.op == type_
    for node, name, type_ in zip(nodes, graph.names, graph.types, strict=True)
  )


def extract(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike | None = DEFAULT_CLUSTER,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  cache_dir: str | os.PathLike[str] | None = None,
  costs: str = DEFAULT_COSTS,
  microbatches: int | Sequence[int] = 1,
  max_in_flight: int | None = None,
  allow_batch_statistics: bool = False,
  recompute: str | Sequence[str | Sequence[str]] = NONE,
) -> OpGraph:
  """Extracts the op graph of a model's step, with the cost of every op.

  Args:
    model: a Keras 3 model (compiled if `training`), the name of a zoo model,
      or the path of a Keras file (.keras), a GraphDef (.pb, .pbtxt) or a
      SavedModel directory.
    cluster: cluster whose device kinds get costs: a `Cluster`, the name of a
      preset, the path of a file, or None for this process's logical devices.
    batch_size: examples per step. None selects the model's default.
    training: whether to extract the training step (forward, gradients,
      optimizer) or inference.
    sizes: additional sizes of a zoo model, such as {"length": 20}.
    cache_dir: directory of the graph cache for zoo models and files. The key
      is a hash of everything that determines the graph. None disables it.
    costs: name of the cost model.
    microbatches: number of microbatches of a training step, or the examples of
      each, such as [10, 10, 2, 2].
    max_in_flight: maximum number of microbatches in flight; None means all.
    allow_batch_statistics: whether BatchNormalization may use the statistics
      of a microbatch.
    recompute: activations that the backward pass computes again: "none", "all",
      or a list of layers and patterns, see `tfplace.place_model`.

  Raises:
    ExtractionError: the model cannot be traced or its step cannot be split.
      The message names the model or file and the problem.
    FormatError: the preset is unknown, or the file is invalid.
    TfplaceError: the cost model is unknown.
  """
  config = MicrobatchConfig.of(
    microbatches,
    max_in_flight,
    allow_batch_statistics,
    recompute_config(recompute),
  )
  config.check()
  check_in_flight(config)
  cluster = find_cluster(cluster)
  config = config.over(cluster)
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  if isinstance(model, str | os.PathLike):
    (graph,) = extract_each(
      model,
      [cluster],
      batch_size=batch_size,
      training=training,
      sizes=sizes,
      cache_dir=cache_dir,
      costs=costs,
      microbatches=config,
    )
    return graph
  from tfplace import extraction as tracing

  if sizes:
    raise ExtractionError(
      f"sizes {sorted(sizes)} are given for a model that is built already"
    )
  check_costs(costs)
  traced = tracing.trace_keras(model, batch_size, training, microbatches=config)
  return op_graph(traced, cluster, costs=costs)


def extract_each(
  source: str | os.PathLike[str],
  clusters: Sequence[ClusterLike | None],
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  cache_dir: str | os.PathLike[str] | None = None,
  costs: str = DEFAULT_COSTS,
  microbatches: MicrobatchConfig = WHOLE,
) -> list[OpGraph]:
  """Extracts the op graph for several clusters with at most one trace.

  Args:
    source: see `extract`; a Keras model is not accepted.
    clusters: clusters, each in a form that `extract` accepts.
    batch_size: examples per step.
    training: whether to extract the training step or inference.
    sizes: additional sizes of a zoo model.
    cache_dir: directory of the graph cache.
    costs: name of the cost model.
    microbatches: microbatches of the training step.

  Returns:
    One op graph per cluster, in order.

  Raises:
    ExtractionError: extraction fails. The message names the model or file and
      the problem.
    FormatError: a preset is unknown.
  """
  source = os.fspath(source)
  traced: TracedStep | None = None
  graphs = []
  for cluster in clusters:
    graph, traced = load_or_extract(
      kind_of(source),
      source,
      find_cluster(cluster),
      batch_size=batch_size,
      training=training,
      sizes=sizes,
      costs=costs,
      microbatches=microbatches,
      cache=GraphCache(cache_dir) if cache_dir else None,
      traced=traced,
    )
    graphs.append(graph)
  return graphs


def kind_of(source: str) -> str:
  """Returns the kind of a source, one of `KINDS`, by its name or path."""
  if source.endswith((".keras", ".h5")):
    return "keras_model"
  if source.endswith((".pb", ".pbtxt")):
    return "graph_def"
  return "saved_model" if os.path.isdir(source) else "model"
