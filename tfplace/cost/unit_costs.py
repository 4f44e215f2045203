"""Costs of units: one op for the ops that XLA compiles together.

A unit takes as long as its library calls and its loops (`fusion`), which take
the time of their bytes, or at least `FLOOR_US`. A variable is written by the
loop that computes its value: a call of units takes the writes as well, see
`variants.units.calls`.
"""

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tfplace.cost.fusion import Fusion, Unit
from tfplace.cost.kernels import parameters
from tfplace.cost.kernels.ops import Kernel
from tfplace.cost.kernels.times import times_us
from tfplace.graph.op_graph import (
  UNIT,
  UNIT_SUFFIX,
  XLA,
  OpGraph,
  OpSpec,
  build_graph,
)
from tfplace.hardware.gpu_hardware import GpuHardware

# A launch inside a unit costs less than one by TensorFlow's executor. Published
# matrix products take at least 1.6 to 5 us.
FLOOR_US = 2.0
# Bandwidth of a loop over that of one elementwise op. By development rows of
# `benchmarks/run_published_steps.py` and an H200.
_SHARE = 0.77
_WRITES = frozenset(
  {"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"}
)


def fuse(
  graph: OpGraph, unit_of: np.ndarray, gpus: Mapping[str, GpuHardware]
) -> OpGraph:
  """Returns the graph with one op of type "Unit" for the ops of each unit.

  A unit has the name of its first op and "/unit", and `members` with the names
  of its ops in `op_extra`.

  Args:
    graph: the step with the costs of single ops.
    unit_of: [num_ops] unit of each op or -1, as `forming.form` returns it.
    gpus: kind of GPU -> hardware, for kernel times. On other kinds, a unit
      takes as long as its ops.
  """
  is_write = np.array([kind in _WRITES for kind in graph.types])
  times = {
    kind: np.where(is_write & (time_us > 0), 0.0, time_us)
    if kind in gpus
    else time_us
    for kind, time_us in graph.time_us.items()
  }
  graph = dataclasses.replace(graph, time_us=times)
  members: dict[int, list[int]] = {}
  for op in graph.topological_order.tolist():
    if unit_of[op] >= 0:
      members.setdefault(int(unit_of[op]), []).append(op)
  inside = Fusion(graph, unit_of)
  units = {number: inside.unit(ops) for number, ops in members.items()}
  unit_us = {
    kind: _times_us(graph, kind, units.values(), gpus.get(kind))
    for kind in graph.time_us
  }
  return _with_units(graph, unit_of, units, unit_us, inside.inlined)


def _times_us(
  graph: OpGraph, kind: str, units: Collection[Unit], gpu: GpuHardware | None
) -> list[float]:
  """Returns the time of each unit; NaN where the kind lacks one of its ops."""
  time_us = graph.time_us[kind]
  single = [float(time_us[unit.ops].sum()) for unit in units]
  if gpu is None:
    return single
  kernels = [
    Kernel("elementwise", "fp32", (max(loop.num_bytes, 1.0), 0.0, 0.0))
    for unit in units
    for loop in unit.loops
  ]
  of_loops = times_us(kernels, gpu, parameters.load()) / _SHARE
  each = iter(np.maximum(of_loops, FLOOR_US).tolist())
  of_calls = np.maximum(time_us, FLOOR_US)
  fused = [
    float(of_calls[[*unit.calls]].sum())
    + sum(itertools.islice(each, len(unit.loops)))
    for unit in units
  ]
  return np.where(np.isnan(single), np.nan, fused).tolist()


def _with_units(
  graph: OpGraph,
  unit_of: np.ndarray,
  units: Mapping[int, Unit],
  times: Mapping[str, Sequence[float]],
  inlined: np.ndarray,
) -> OpGraph:
  """Builds the graph of units and of the ops outside them."""
  outside = unit_of < 0
  # Constants that only units read are part of them.
  is_kept = np.zeros(graph.num_ops, bool)
  is_kept[graph.edge_src[outside[graph.edge_dst]]] = True
  is_kept |= ~inlined
  row_of = {number: row for row, number in enumerate(units)}
  specs: list[OpSpec] = []
  node_of: dict[int, int] = {}  # op -> position in the result
  output_of: dict[int, int] = {}  # tensor -> its output there
  for op in range(graph.num_ops):
    if op in node_of or not is_kept[op]:
      continue
    number = int(unit_of[op])
    if number < 0:
      tensors = range(*graph.output_offsets[op : op + 2].tolist())
      unit = Unit([op], tensors, (), (), float(graph.temp_bytes[op]))
      time_us = {kind: float(us[op]) for kind, us in graph.time_us.items()}
    else:
      unit = units[number]
      time_us = {kind: us[row_of[number]] for kind, us in times.items()}
    node_of.update(dict.fromkeys(unit.ops, len(specs)))
    output_of.update({tensor: i for i, tensor in enumerate(unit.outputs)})
    specs.append(_spec(graph, unit, time_us, is_unit=number >= 0))
  edges = {
    (
      node_of[src],
      output_of[int(graph.output_offsets[src]) + out] if out >= 0 else -1,
      node_of[dst],
    ): None
    for src, out, dst in zip(
      graph.edge_src.tolist(),
      graph.edge_output.tolist(),
      graph.edge_dst.tolist(),
      strict=True,
    )
    if src in node_of
    and node_of[src] != node_of[dst]
    and not (inlined[src] and not outside[dst])
  }
  return build_graph(
    graph.name, specs, list(edges), extra={**graph.extra, "compile": XLA}
  )


def _spec(
  graph: OpGraph, unit: Unit, time_us: Mapping[str, float], *, is_unit: bool
) -> OpSpec:
  """Describes a unit, or an op outside units, as an op."""
  ops, first = unit.ops, unit.ops[0]
  group, layer = int(graph.colocation[first]), int(graph.layer[first])
  microbatch = int(graph.microbatch[first])
  return OpSpec(
    name=graph.names[first] + UNIT_SUFFIX * is_unit,
    type=UNIT if is_unit else graph.types[first],
    time_us={k: us for k, us in time_us.items() if not np.isnan(us)},
    output_bytes=graph.output_bytes[[*unit.outputs]].tolist(),
    persistent_bytes=float(graph.persistent_bytes[ops].sum()),
    temp_bytes=unit.temp_bytes,
    colocation=graph.colocation_names[group] if group >= 0 else None,
    layer=graph.layer_names[layer] if layer >= 0 else None,
    microbatch=microbatch if microbatch >= 0 else None,
    peak_us={k: float(us[ops].sum()) for k, us in graph.peak_us.items()},
    extra={"members": [graph.names[op] for op in ops]} if is_unit else {},
  )
