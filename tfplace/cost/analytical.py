"""From a traced step to an `OpGraph` with estimated costs.

No device and no run is needed. Measured times replace the estimates in
`tfplace.cost.profile`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tensorflow.core.protobuf.device_properties_pb2 import DeviceProperties

from tfplace.core.cluster import Cluster
from tfplace.core.op_graph import OpGraph, OpSpec, build_graph
from tfplace.cost import calls, estimate, grappler, sizes
from tfplace.extraction import stages
from tfplace.extraction import stages as garbage
from tfplace.extraction.structure import Skeleton, skeleton
from tfplace.extraction.traced import TracedStep


@garbage.collector_paused()
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
  described = grappler.hardware_by_kind(cluster)
  count = f"of {len(traced.graph_def.node):,} ops"
  on_stage(f"kernels and colocation {count}")
  bones = skeleton(traced)
  on_stage(f"shapes {count}")
  graph_def = sizes.with_feed_shapes(traced)
  graph = sizes.import_step(graph_def, traced.name)
  specs = sizes.output_specs(graph)
  on_stage(f"costs {count} on {' and '.join(described)}")
  costs = _Costs(
    described,
    estimate.times_us(graph_def, graph, specs, described),
    specs,
    {n.name: sizes.persistent_bytes(n) for n in graph_def.node},
    calls.CallCosts(graph_def, described).of_graph(graph),
  )
  ops = _ops(bones, costs)
  extra = _extra(traced, bones, costs)
  return build_graph(traced.name, ops, bones.edges, extra=extra)


@dataclasses.dataclass(frozen=True)
class _Costs:
  """What is known of the ops, by their names.

  Attributes:
    hardware: device kind -> its hardware.
    time_us: device kind -> op -> microseconds; absent where it has no cost.
    specs: op -> its outputs.
    persistent_bytes: op -> bytes that it holds for the whole step.
    called: op that calls functions -> what these cost, in place of its own.
  """

  hardware: Mapping[str, DeviceProperties]
  time_us: Mapping[str, Mapping[str, float]]
  specs: Mapping[str, tuple[sizes.TensorSpec, ...]]
  persistent_bytes: Mapping[str, float]
  called: Mapping[str, calls.CallCost]

  def op_time_us(self, name: str, kind: str) -> float:
    """Of one op on a kind that has a kernel for it."""
    call = self.called.get(name)
    if call is not None and kind in call.time_us:
      return call.time_us[kind]
    return self.time_us[kind].get(name, 0.0)


def _ops(bones: Skeleton, costs: _Costs) -> list[OpSpec]:
  """The ops in the skeleton's order; no time for a kind without a kernel."""
  return [
    OpSpec(
      name=name,
      type=bones.types[i],
      time_us={
        kind: costs.op_time_us(name, kind)
        for kind, properties in costs.hardware.items()
        if properties.type in bones.kinds[i]
      },
      output_bytes=[spec.num_bytes for spec in costs.specs[name]],
      persistent_bytes=costs.persistent_bytes[name],
      temp_bytes=costs.called[name].temp_bytes if name in costs.called else 0.0,
      colocation=bones.colocation[i],
      layer=bones.layers[i],
    )
    for i, name in enumerate(bones.names)
  ]


def _extra(
  traced: TracedStep, bones: Skeleton, costs: _Costs
) -> dict[str, Any]:
  """Where the costs are from, and what in them is a guess."""
  extra: dict[str, Any] = {"costs": "grappler", "training": traced.training}
  unknown_shapes = [
    name
    for name in bones.names
    if any(not s.is_known and s.num_bytes for s in costs.specs[name])
  ]
  unknown_counts = [
    name for name, call in costs.called.items() if not call.is_sure
  ]
  if unknown_shapes:
    extra["unknown_shapes"] = unknown_shapes
  if unknown_counts:
    extra["unknown_trip_counts"] = unknown_counts
  return extra
