"""From anything that holds a model to its op graph: trace, then costs.

This is the one place that joins the model zoo, `extraction`, `cost` and the
cache of earlier results. It imports TensorFlow when something must be traced.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tfplace.core.cluster import Cluster
from tfplace.core.op_graph import OpGraph
from tfplace.errors import ExtractionError
from tfplace.extraction import stages
from tfplace.plan.cache_keys import content_key
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.graph_cache import GraphCache

if TYPE_CHECKING:
  import keras

  from tfplace.extraction.traced import TracedStep

KINDS = ("model", "saved_model", "keras_model", "graph_def")
DEFAULT_CLUSTER = "v100x1"


def trace(
  kind: str,
  source: str,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  allow_side_effects: bool = False,
  on_stage: stages.OnStage = stages.ignore,
) -> "TracedStep":
  """Traces one step of a model that is named or lies in a file.

  Args:
    kind: one of `KINDS`.
    source: a name of the zoo, a SavedModel directory, a Keras file, or a
      GraphDef file.
    batch_size: examples per step; None is the model's own default.
    training: the training step, or inference; a SavedModel and a GraphDef are
      what they are.
    sizes: further sizes of a zoo model, such as {"length": 20}.
    allow_side_effects: of loading a SavedModel or a GraphDef: TensorFlow may
      run ops of theirs that touch files, processes or Python.
    on_stage: called as each stage begins.

  Raises:
    ExtractionError: names the file or model and what is wrong with it.
  """
  from tfplace import extraction as tracing
  from tfplace.extraction.keras_step import fresh_names

  if sizes and kind != "model":
    raise ExtractionError(
      f"sizes {sorted(sizes)} are given for {source!r}, which is no zoo model"
    )
  on_stage(f"building {source}" if kind == "model" else f"loading {source}")
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
      return _trace_zoo(source, batch_size, training, sizes or {}, on_stage)
    if kind == "keras_model":
      return tracing.trace_keras_file(
        source, batch_size, training, on_stage=on_stage
      )
  raise ExtractionError(f"unknown kind of source {kind!r}: one of {KINDS}")


def _trace_zoo(
  name: str,
  batch_size: int | None,
  training: bool,
  sizes: Mapping[str, int],
  on_stage: stages.OnStage,
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
    zoo.model, zoo.batch_size, training, zoo.sample(seed=0), on_stage=on_stage
  )
  return dataclasses.replace(traced, name=name)


def op_graph(
  traced: "TracedStep",
  cluster: Cluster,
  on_stage: stages.OnStage = stages.ignore,
) -> OpGraph:
  """The op graph of a traced step, with costs for the cluster's kinds."""
  from tfplace import cost

  return cost.op_graph(traced, cluster, on_stage)


def load_or_extract(
  kind: str,
  source: str,
  cluster: Cluster,
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  cache: GraphCache | None = None,
  needs_trace: bool = False,
  traced: "TracedStep | None" = None,
  allow_side_effects: bool = False,
  on_stage: stages.OnStage = stages.ignore,
) -> "tuple[OpGraph, TracedStep | None]":
  """The op graph, from the cache where it is there; `trace` has the arguments.

  Args:
    kind: as in `trace`, and so are the other arguments of the same names.
    source: name or path.
    cluster: whose device kinds are costed.
    batch_size: examples per step.
    training: the training step, or inference.
    sizes: of a zoo model.
    cache: where graphs are kept; None extracts anew.
    needs_trace: the traced step is wanted too, which no cache holds: then only
      the costs may come from it.
    traced: what an earlier call with the same arguments, for another cluster,
      has returned; None traces.
    allow_side_effects: of loading.
    on_stage: called as each stage begins; never for a cached graph.

  Returns:
    The graph, and the traced step where there is one.

  Raises:
    ExtractionError: names the file or model and what is wrong with it.
  """
  asked: dict[str, Any] = {
    "batch_size": batch_size,
    "training": training,
    "sizes": sizes,
  }
  slot = _Slot(cache, lambda: content_key(kind, source, cluster, **asked))
  graph = slot.load()
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
    graph = op_graph(traced, cluster, on_stage)
    slot.store(graph)
  return graph, traced


class _Slot:
  """Where a cache keeps one graph; without a cache nothing is ever there."""

  def __init__(
    self, cache: GraphCache | None, find_key: Callable[[], str | None]
  ) -> None:
    """`find_key` hashes all that decides the graph, files as they are now."""
    self._cache = cache
    self._find_key = find_key
    self._key = find_key() if cache else None

  def load(self) -> OpGraph | None:
    return self._cache.load(self._key) if self._cache and self._key else None

  def store(self, graph: OpGraph) -> None:
    """Keeps the graph, unless a file changed while it was extracted."""
    if self._cache and self._key and self._find_key() == self._key:
      self._cache.store(self._key, graph)


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
) -> OpGraph:
  """The dataflow graph of a model's step, with the cost of every op.

  Args:
    model: a Keras 3 model (compiled, if `training`), a name of the zoo, or the
      path of a Keras file (.keras), a GraphDef (.pb, .pbtxt) or a SavedModel
      directory.
    cluster: whose device kinds are costed; a `Cluster`, the name of a preset,
      the path of a file, or None for this process's logical devices.
    batch_size: examples per step; None is the model's own default.
    training: the training step (forward, gradients, optimizer) or inference.
    sizes: further sizes of a zoo model, such as {"length": 20}.
    cache_dir: directory where graphs of named models and of files are kept by
      a hash of all that decides them; None extracts anew.

  Raises:
    ExtractionError: names the model or file and what is wrong with it.
    FormatError: no such preset, or a broken file.
  """
  if isinstance(model, str | os.PathLike):
    (graph,) = extract_each(
      model,
      [cluster],
      batch_size=batch_size,
      training=training,
      sizes=sizes,
      cache_dir=cache_dir,
    )
    return graph
  cluster = find_cluster(cluster)
  from tfplace import extraction as tracing

  if sizes:
    raise ExtractionError(
      f"sizes {sorted(sizes)} are given for a model that is built already"
    )
  return op_graph(tracing.trace_keras(model, batch_size, training), cluster)


def extract_each(
  source: str | os.PathLike[str],
  clusters: Sequence[ClusterLike | None],
  *,
  batch_size: int | None = None,
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  cache_dir: str | os.PathLike[str] | None = None,
) -> list[OpGraph]:
  """As `extract` for each of several clusters, but traces once at most.

  Args:
    source: a name of the zoo or a path, as of `extract`.
    clusters: each as of `extract`.
    batch_size: as of `extract`, and so are the others.
    training: the training step or inference.
    sizes: further sizes of a zoo model.
    cache_dir: where graphs are kept.

  Returns:
    A graph for each cluster, in order.

  Raises:
    ExtractionError: names the model or file and what is wrong with it.
    FormatError: no such preset.
  """
  source = os.fspath(source)
  traced: TracedStep | None = None
  graphs = []
  for cluster in clusters:
    graph, traced = load_or_extract(
      _kind_of(source),
      source,
      find_cluster(cluster),
      batch_size=batch_size,
      training=training,
      sizes=sizes,
      cache=GraphCache(cache_dir) if cache_dir else None,
      traced=traced,
    )
    graphs.append(graph)
  return graphs


def _kind_of(source: str) -> str:
  if source.endswith((".keras", ".h5")):
    return "keras_model"
  if source.endswith((".pb", ".pbtxt")):
    return "graph_def"
  return "saved_model" if os.path.isdir(source) else "model"
