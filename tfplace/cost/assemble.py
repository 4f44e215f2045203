"""Conversion of a traced step to an `OpGraph` with costs.

Structure and bytes come from the step; times come from a cost model.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.cost import grappler, registry, sizes, unit_costs
from tfplace.extraction.structure import Skeleton, skeleton
from tfplace.extraction.traced import TracedStep, collector_paused
from tfplace.graph.cluster import Cluster
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph
from tfplace.graph.progress import Progress, silent
from tfplace.graph.protocols import CostModel
from tfplace.hardware.gpu_hardware import GpuHardware
from tfplace.variants.units import forming


@dataclasses.dataclass(frozen=True)
class Step:
  """Input of a cost model: a step without costs.

  Attributes:
    graph: ops, edges and bytes. `time_us` is 0 for kinds with a kernel for the
      op and NaN for others; `temp_bytes` is 0.
    graph_def: a node per op, in the order of `graph`, with explicit shapes of
      feeds and variables.
    tf_graph: `graph_def`, imported, with the shapes that TensorFlow infers.
    outputs: op name -> shape and type of each output.
    hardware: device kind -> hardware as Grappler takes it.
    gpus: kind of GPU -> fields that its kernel times depend on.
  """

  graph: OpGraph
  graph_def: tf.compat.v1.GraphDef
  tf_graph: tf.Graph
  outputs: Mapping[str, tuple[sizes.TensorSpec, ...]]
  hardware: Mapping[str, DeviceProperties]
  gpus: Mapping[str, GpuHardware] = dataclasses.field(default_factory=dict)


@collector_paused()
def op_graph(
  traced: TracedStep,
  cluster: Cluster,
  on_stage: Progress = silent,
  *,
  cost_model: str | CostModel = registry.DEFAULT,
  compile_units: bool = False,
) -> OpGraph:
  """Returns the step's dataflow graph with a time per op and device kind.

  - The cost model gives times and temporary bytes. An op without a kernel for a
    kind has no time there.
  - Output bytes follow from static shapes. Resource handles have 0. An unknown
    size counts as 1, as in Grappler, and such ops are listed in
    `extra["unknown_shapes"]`.
  - Persistent bytes are those of variables, at their handle. The result of
    `ReadVariableOp` counts again while it is in use. TensorFlow shares the
    buffer, but a transfer needs the size, so peak memory is an upper bound.

  Args:
    traced: the step; its placeholders must have static shapes.
    on_stage: called at the start of each stage.
    cost_model: a name of the registry, or a cost model.
    compile_units: fuse the step into units that XLA compiles, see
      `variants.units`.

  Raises:
    ExtractionError: shapes of inputs are unknown, or TensorFlow or the cost
      model rejects the graph.
    ProblemError: the cluster's hardware is not understood.
    TfplaceError: there is no such cost model.
  """
  if isinstance(cost_model, str):
    cost_model = registry.get_cost_model(cost_model)
  described = grappler.described_by_kind(cluster)
  count = f"of {len(traced.graph_def.node):,} ops"
  on_stage(f"kernels and colocation {count}")
  structure = skeleton(traced)
  on_stage(f"shapes {count}")
  step = _step(traced, structure, described)
  on_stage(f"costs {count} on {' and '.join(described)}")
  costs = cost_model.op_costs(step)
  extra = {"costs": cost_model.name, **step.graph.extra, **costs.extra}
  graph = dataclasses.replace(costs.fill(step.graph), extra=extra)
  if not compile_units:
    return graph
  on_stage(f"units {count}")
  return unit_costs.fuse(graph, forming.form(graph, step.tf_graph), step.gpus)


def _step(
  traced: TracedStep,
  structure: Skeleton,
  described: Mapping[str, grappler.Hardware],
) -> Step:
  hardware = {kind: found.properties for kind, found in described.items()}
  gpus = {kind: found.gpu for kind, found in described.items() if found.gpu}
  graph_def = sizes.with_feed_shapes(traced)
  tf_graph = sizes.import_step(graph_def, traced.name)
  outputs = sizes.output_specs(tf_graph)
  persistent = {n.name: sizes.persistent_bytes(n) for n in graph_def.node}
  ops = [
    OpSpec(
      name=name,
      type=structure.types[i],
      time_us={
        kind: 0.0
        for kind, properties in hardware.items()
        if properties.type in structure.kinds[i]
      },
      output_bytes=[spec.num_bytes for spec in outputs[name]],
      persistent_bytes=persistent[name],
      colocation=structure.colocation[i],
      layer=structure.layers[i],
      microbatch=structure.microbatches[i],
    )
    for i, name in enumerate(structure.names)
  ]
  extra: dict[str, Any] = {"training": traced.training}
  if traced.batch_size:
    extra["batch_size"] = traced.batch_size
  if traced.microbatches > 1:
    extra["microbatches"] = traced.microbatches
    if len(set(traced.microbatch_sizes)) > 1:
      extra["microbatch_sizes"] = list(traced.microbatch_sizes)
  unknown_shapes = [
    name
    for name in structure.names
    if any(not s.is_known and s.num_bytes for s in outputs[name])
  ]
  if unknown_shapes:
    extra["unknown_shapes"] = unknown_shapes
  graph = build_graph(traced.name, ops, structure.edges, extra=extra)
  return Step(graph, graph_def, tf_graph, outputs, hardware, gpus)


def by_op(graph: OpGraph, values: Mapping[str, float]) -> np.ndarray:
  """Returns [num_ops] values of ops by name, 0 for missing ones."""
  by_name = (values.get(name, 0.0) for name in graph.names)
  return np.fromiter(by_name, np.float64, graph.num_ops)
