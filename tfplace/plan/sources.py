"""Op graphs with costs of a model's step, extracted or from the graph cache."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfplace.core.argument_checks import check_count
from tfplace.core.cluster import Cluster
from tfplace.core.microbatches import (
  WHOLE,
  VariantConfig,
  check_in_flight,
)
from tfplace.core.op_graph import XLA, OpGraph
from tfplace.core.progress import Progress, silent
from tfplace.core.recompute import NONE, recompute_config
from tfplace.cost import registry
from tfplace.errors import TfplaceError, shown
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import AUTO
from tfplace.plan.graph_cache import GraphCache
from tfplace.plan.graph_keys import content_key
from tfplace.plan.model_source import (
  ModelSource,
  check_microbatches,
  open_source,
)

if TYPE_CHECKING:
  import keras

  from tfplace.extraction.traced import TracedStep

DEFAULT_COSTS = registry.DEFAULT
COMPILE = (AUTO, NONE, XLA)


def check_compile(compile: str) -> None:
  """Raises TfplaceError for a value that is not one of the choices."""
  if not isinstance(compile, str) or compile not in COMPILE:
    raise TfplaceError(
      f"compile is {shown(compile)}; choose one of {', '.join(COMPILE)}"
    )


def check_costs(name: str, also: Sequence[str] = ()) -> None:
  """Checks that a cost model exists.

  Args:
    name: name of a cost model, or one of `also`.
    also: further choices of the caller.

  Raises:
    TfplaceError: the name is unknown. The message lists the choices.
  """
  names = [*also, *registry.COST_MODELS]
  if not isinstance(name, str) or name not in names:
    raise TfplaceError(
      f"unknown cost model {shown(name)}; choose one of {', '.join(names)}"
    )


def op_graph(
  traced: "TracedStep",
  cluster: Cluster,
  on_stage: Progress = silent,
  costs: str = DEFAULT_COSTS,
  compile_units: bool = False,
) -> OpGraph:
  """Returns the op graph of a traced step with costs for a cluster's kinds."""
  from tfplace.cost import assemble

  return assemble.op_graph(traced, cluster, on_stage, costs, compile_units)


def load_or_extract(
  source: ModelSource,
  cluster: Cluster,
  *,
  batch_size: int | None = None,
  microbatches: VariantConfig = WHOLE,
  costs: str = DEFAULT_COSTS,
  compile: str = AUTO,
  cache: GraphCache | None = None,
  needs_trace: bool = False,
  on_stage: Progress = silent,
) -> "tuple[OpGraph, TracedStep | None]":
  """Loads the op graph from the cache, or extracts it.

  Args:
    source: the model.
    cluster: cluster whose device kinds get costs.
    batch_size: examples per step; None selects the model's default.
    microbatches: microbatches of the training step; see `check_microbatches`.
    costs: name of a cost model.
    compile: whether the graph is of units that XLA compiles; see `extract`.
    cache: graph cache. None always extracts, and so does a Keras model.
    needs_trace: whether the traced step is required; it is never cached.
    on_stage: called at the start of each stage, never for a cached graph.

  Returns:
    The op graph, and the traced step, or None for a cached graph.

  Raises:
    ExtractionError: extraction fails. The message names the file or model and
      the problem.
  """
  check_costs(costs)
  check_microbatches(microbatches, source.kind, source.name, source.training)
  compiles = source.compiles(compile, cluster)
  find_key = functools.partial(
    content_key,
    source.kind,
    source.name,
    cluster,
    batch_size=batch_size,
    training=source.training,
    sizes=source.sizes,
    costs=costs,
    compile_units=compiles,
    microbatches=microbatches,
    sample=source.sample,
  )
  if source.model is not None:
    cache = None
  key = find_key() if cache else None
  graph = cache.load(key) if cache and key else None
  if graph is not None and not needs_trace:
    return graph, None
  traced = source.trace(batch_size, microbatches, on_stage=on_stage)
  if graph is None or not _is_of(graph, traced):
    graph = op_graph(traced, cluster, on_stage, costs, compiles)
    if cache and key and find_key() == key:  # No file has changed meanwhile.
      cache.store(key, graph)
  return graph, traced


def _is_of(graph: OpGraph, traced: "TracedStep") -> bool:
  nodes = traced.graph_def.node
  if graph.members:
    return {node.name for node in nodes}.issuperset(graph.traced_names)
  return len(nodes) == graph.num_ops and all(
    node.name == name and node.op == type_
    for node, name, type_ in zip(nodes, graph.names, graph.types, strict=True)
  )


def extract(
  model: "keras.Model | str | os.PathLike[str]",
  cluster: ClusterLike | None = "v100x1",
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
  compile: str = AUTO,
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
    compile: "xla" fuses the step into units that XLA compiles: one op of type
      "Unit" per layer, pass and microbatch. "none" keeps single ops. "auto",
      the default, fuses steps of Keras models for clusters with GPUs, where
      Keras compiles them.

  Raises:
    ExtractionError: the model cannot be traced or its step cannot be split.
      The message names the model or file and the problem.
    FormatError: the preset is unknown, or the file is invalid.
    TfplaceError: the cost model or `compile` is unknown.
  """
  check_compile(compile)
  config = VariantConfig.of(
    microbatches,
    max_in_flight,
    allow_batch_statistics,
    recompute_config(recompute),
  )
  check_in_flight(config)
  cluster = find_cluster(cluster)
  config = config.over(cluster)
  if batch_size is not None:
    batch_size = check_count("batch_size", batch_size, 1)
  graph, _ = load_or_extract(
    open_source(model, training=training, sizes=sizes),
    cluster,
    batch_size=batch_size,
    microbatches=config,
    costs=costs,
    compile=compile,
    cache=GraphCache(cache_dir) if cache_dir else None,
  )
  return graph
