"""From a traced step to an `OpGraph` with estimated costs.

No device and no run is needed. Measured times replace the estimates in
`tfplace.cost.profile`.
"""

import math

from tfplace.cost import explicit_shapes, grappler, hardware, sizes
from tfplace.graph.cluster import Cluster
from tfplace.graph.extract.structure import Skeleton, skeleton
from tfplace.graph.extract.traced import TracedStep
from tfplace.graph.op_graph import OpGraph, OpSpec, build_graph


def op_graph(traced: TracedStep, cluster: Cluster) -> OpGraph:
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
  - Temporary bytes: Grappler estimates none, so 0.

  Args:
    traced: the step; its placeholders must have static shapes.
    cluster: whose kinds get times.

  Raises:
    ExtractionError: shapes of inputs are unknown, or TensorFlow or Grappler
      rejects the graph.
    ProblemError: the cluster's hardware is not understood.
  """
  described = hardware.hardware_by_kind(cluster)
  bones = skeleton(traced)
  graph_def = sizes.with_feed_shapes(traced)
  graph = sizes.import_step(graph_def, traced.name)
  specs = sizes.output_specs(graph)
  explicit = explicit_shapes.with_explicit_shapes(graph_def, graph)
  times = {
    kind: grappler.op_times_us(explicit, properties)
    for kind, properties in described.items()
  }
  nodes = {node.name: node for node in graph_def.node}
  ops = [
    OpSpec(
      name=name,
      type=bones.types[i],
      time_us={
        kind: _valid(times[kind].get(name, 0.0))
        for kind, properties in described.items()
        if properties.type in bones.kinds[i]
      },
      output_bytes=[spec.num_bytes for spec in specs[name]],
      persistent_bytes=sizes.persistent_bytes(nodes[name]),
      colocation=bones.colocation[i],
    )
    for i, name in enumerate(bones.names)
  ]
  extra = {"costs": "grappler", "training": traced.training}
  unknown = _unknown(bones, specs)
  if unknown:
    extra["unknown_shapes"] = unknown
  return build_graph(traced.name, ops, bones.edges, extra=extra)


def _valid(time_us: float) -> float:
  """Grappler overflows on absurd sizes; a time is finite and not negative."""
  return time_us if math.isfinite(time_us) and time_us > 0 else 0.0


def _unknown(
  bones: Skeleton, specs: dict[str, tuple[sizes.TensorSpec, ...]]
) -> list[str]:
  return [
    name
    for name in bones.names
    if any(not s.is_known and s.num_bytes for s in specs[name])
  ]
