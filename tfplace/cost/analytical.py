"""From a traced step to an `OpGraph` with estimated costs.

No device and no run is needed. Measured times replace the estimates in
`tfplace.cost.profile`.
"""

from collections.abc import Mapping
from typing import Any

from tfplace.cost import calls, estimate, hardware, sizes
from tfplace.graph.cluster import Cluster
from tfplace.graph.extract import stages
from tfplace.graph.extract.structure import Skeleton, skeleton
from tfplace.graph.extract.traced import TracedStep
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph


def op_graph(
  traced: TracedStep,
  cluster: Cluster,
  on_stage: stages.OnStage = stages.ignore,
) -> OpGraph:
  """The step's dataflow graph with a time per op and device kind.

  - Times: Grappler's estimator on each kind's hardware (`Device.extra
    ["hardware"]`); an op without a kernel for the kind has none, an op that
    Grappler leaves out takes 0.
  - Output bytes: from static shapes. Resource handles are 0. An unknown size
    counts as 1, as in Grappler, and such ops are listed in
    `extra["unknown_shapes"]`.
  - Persistent bytes: of variables, at their handle. What `ReadVariableOp`
    returns is counted once more while it is in use: TensorFlow shares the
    buffer, but the tensor must have its size to be sent to other devices, so
    peak memory errs on the safe side.
  - Temporary bytes: what the body of a call holds at once. Grappler estimates
    none, so 0 for other ops.
  - Calls, branches and loops that could not be inlined: see `calls`. Loops of
    unknown length count one iteration and are listed in
    `extra["unknown_trip_counts"]`.

  Args:
    traced: the step; its placeholders must have static shapes.
    cluster: whose kinds get times.
    on_stage: is told each stage.

  Raises:
    ExtractionError: shapes of inputs are unknown, or TensorFlow or Grappler
      rejects the graph.
    ProblemError: the cluster's hardware is not understood.
  """
  described = hardware.hardware_by_kind(cluster)
  count = f"of {len(traced.graph_def.node):,} ops"
  on_stage(f"kernels and colocation {count}")
  bones = skeleton(traced)
  on_stage(f"shapes {count}")
  graph_def = sizes.with_feed_shapes(traced)
  graph = sizes.import_step(graph_def, traced.name)
  specs = sizes.output_specs(graph)
  on_stage(f"costs {count} on {' and '.join(described)}")
  times = estimate.times_us(graph_def, graph, described)
  called = calls.CallCosts(graph_def, described).of_graph(graph)
  for name, call in called.items():
    for kind, time_us in call.time_us.items():
      times[kind][name] = time_us
  nodes = {node.name: node for node in graph_def.node}
  ops = [
    OpSpec(
      name=name,
      type=bones.types[i],
      time_us={
        kind: times[kind].get(name, 0.0)
        for kind, properties in described.items()
        if properties.type in bones.kinds[i]
      },
      output_bytes=[spec.num_bytes for spec in specs[name]],
      persistent_bytes=sizes.persistent_bytes(nodes[name]),
      temp_bytes=called[name].temp_bytes if name in called else 0.0,
      colocation=bones.colocation[i],
    )
    for i, name in enumerate(bones.names)
  ]
  extra = _extra(traced, bones, specs, called)
  return build_graph(traced.name, ops, bones.edges, extra=extra)


def _extra(
  traced: TracedStep,
  bones: Skeleton,
  specs: Mapping[str, tuple[sizes.TensorSpec, ...]],
  called: Mapping[str, calls.CallCost],
) -> dict[str, Any]:
  """Where the costs are from, and what in them is a guess."""
  extra: dict[str, Any] = {"costs": "grappler", "training": traced.training}
  unknown_shapes = [
    name
    for name in bones.names
    if any(not s.is_known and s.num_bytes for s in specs[name])
  ]
  unknown_counts = [name for name, call in called.items() if not call.is_sure]
  if unknown_shapes:
    extra["unknown_shapes"] = unknown_shapes
  if unknown_counts:
    extra["unknown_trip_counts"] = unknown_counts
  return extra
