"""Step variants of a model, with the costs of their ops on a cluster."""

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from tfplace import cost, formats
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.cluster import Cluster
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.op_graph import XLA, OpGraph
from tfplace.graph.problem import Problem
from tfplace.graph.progress import Progress, silent
from tfplace.plan.clusters import ClusterLike, find_cluster
from tfplace.plan.config import PlanConfig, StepOptions
from tfplace.plan.graph_cache import GraphCache
from tfplace.plan.graph_keys import content_key
from tfplace.plan.source import GRAPH, ModelSource, check_variant, open_source
from tfplace.plan.stages import Stages
from tfplace.plan.variants import StepVariant

if TYPE_CHECKING:
  import keras

  from tfplace.extraction.traced import TracedStep


@dataclasses.dataclass(eq=False)
class Steps:
  """Step variants of a source, with the costs of their ops on a cluster.

  Attributes:
    source: the model.
    cluster: cluster whose device kinds get costs.
    config: the request.
    cache: graph cache. None always extracts.
  """

  source: ModelSource
  cluster: Cluster
  config: PlanConfig
  cache: GraphCache | None = None

  @property
  def training(self) -> bool:
    return self.source.training

  @property
  def suggests_microbatches(self) -> bool:
    """Returns whether microbatches are possible and may gain speed."""
    return self.training and self.source.takes_microbatches

  @property
  def compile_units(self) -> bool:
    """Returns whether XLA compiles the step, which "auto" leaves to Keras."""
    return compiles(self.source, self.cluster, self.config)

  def open(self, variant: VariantConfig, show: Stages) -> StepVariant:
    """Extracts a step variant with the costs of its ops."""
    with show("extraction") as on_stage:
      graph, traced = self.graph(variant, on_stage=on_stage)
    return StepVariant(Problem(graph, self.cluster), traced)

  def compare(
    self, step: StepVariant, variant: VariantConfig, show: Stages
  ) -> str:
    """Compares a microbatched step numerically with the whole step.

    Returns what was not compared, and why, or "". By default, nothing is
    compared.

    Raises:
      ExtractionError: the steps differ.
    """
    del step, variant, show
    return ""

  def graph(
    self,
    variant: VariantConfig,
    needs_trace: bool = False,
    on_stage: Progress = silent,
  ) -> "tuple[OpGraph, TracedStep | None]":
    """Loads the op graph of a step variant from the cache, or extracts it.

    A traced step is never cached; it is None with a cached graph, unless
    `needs_trace`.
    """
    if self.source.kind == GRAPH:
      check_variant(variant, GRAPH, self.source.name, self.training)
      return formats.load_graph(self.source.name), None
    variant = variant.over(self.cluster)
    cache, key = self.cache, self._key(variant)
    graph = cache.load(key) if cache and key else None
    if graph is not None and not needs_trace:
      return graph, None
    traced = self.source.trace(variant, on_stage=on_stage)
    if graph is None or not _is_of(graph, traced):
      graph = cost.op_graph(
        traced,
        self.cluster,
        on_stage,
        cost_model=self.config.costs,
        compile_units=self.compile_units,
      )
      # Store it unless a file has changed meanwhile.
      if cache and key and self._key(variant) == key:
        cache.store(key, graph)
    return graph, traced

  def _key(self, variant: VariantConfig) -> str | None:
    if self.cache is None:
      return None
    return content_key(
      self.source,
      self.cluster,
      variant,
      costs=self.config.costs,
      compile_units=self.compile_units,
    )


def compiles(source: ModelSource, cluster: Cluster, config: PlanConfig) -> bool:
  """Returns whether XLA compiles units of a step on a cluster."""
  if config.compile == AUTO:
    return source.is_compiled_on(cluster)
  return config.compile == XLA


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
  training: bool = True,
  sizes: Mapping[str, int] | None = None,
  **options: Unpack[StepOptions],
) -> OpGraph:
  """Extracts the op graph of a model's step, with the cost of every op.

  Args:
    model: a Keras 3 model (compiled if `training`), the name of a zoo model,
      or the path of a Keras file (.keras), a GraphDef (.pb, .pbtxt) or a
      SavedModel directory.
    cluster: cluster whose device kinds get costs: a `Cluster`, the name of a
      preset, the path of a file, or None for this process's logical devices.
    training: whether to extract the training step (forward, gradients,
      optimizer) or inference.
    sizes: additional sizes of a zoo model, such as {"length": 20}.
    **options: `StepOptions`, such as `batch_size` and `microbatches`. Units
      that XLA compiles are ops of type "Unit".

  Raises:
    ExtractionError: the model cannot be traced or its step cannot be split.
      The message names the model or file and the problem.
    FormatError: the preset is unknown, or the file is invalid.
    TfplaceError: an option is invalid.
  """
  config = PlanConfig.from_options(options, StepOptions)
  source = open_source(
    model, training=training, sizes=sizes, batch_size=config.batch_size
  )
  graph, _ = Steps(source, find_cluster(cluster), config).graph(config.variant)
  return graph
