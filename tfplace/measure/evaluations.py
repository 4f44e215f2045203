"""Conversion of measured steps to `Evaluation`s."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.extraction.traced import FeedSpec, TracedStep, VariableSpec
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.order import order_to_json
from tfplace.graph.paths import transfers
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.measure.local import runtime
from tfplace.measure.session import messages


def failed(problem: Problem, error: runtime.ChildError) -> Evaluation:
  """Returns the evaluation of a placement that could not be run."""
  zeros = {d.name: 0.0 for d in problem.cluster.devices}
  return Evaluation(
    step_time_us=math.inf,
    feasible=False,
    peak_memory_bytes=zeros,
    busy_us=zeros,
    bytes_moved=0.0,
    lower_bound_us=problem.lower_bound_us,
    source="measured",
    extra={"error": str(error), "error_kind": error.kind},
  )


def evaluation(
  traced: TracedStep, placement: Placement, reply: messages.StepReply
) -> Evaluation:
  """Returns the evaluation of a placement of a traced step that ran."""
  devices = placement.problem.cluster.devices
  held = _held_bytes(traced, placement.assignments)
  peaks = {
    d.name: held.get(d.name, 0.0) + _median_peak(reply.traces, d.name)
    for d in devices
  }
  return Evaluation(
    step_time_us=statistics.median(reply.step_us),
    feasible=all(peaks[d.name] <= d.memory_bytes for d in devices),
    peak_memory_bytes=peaks,
    busy_us={d.name: _busy_us(reply.traces, d.name) for d in devices},
    bytes_moved=_bytes_moved(placement, reply.traces),
    lower_bound_us=placement.problem.lower_bound_us,
    source="measured",
    extra={**order_to_json(placement.problem.order), **_extra(reply)},
  )


def _held_bytes(
  traced: TracedStep, assignments: Mapping[str, str]
) -> dict[str, float]:
  """Sums bytes of variables and inputs by device, which traces do not have.

  They are held for the whole step.
  """
  result: dict[str, float] = {}
  specs: Mapping[str, VariableSpec | FeedSpec]
  specs = {**traced.variables, **traced.feeds}
  for name, spec in specs.items():
    if name in assignments:
      size = float(np.prod(spec.shape, dtype=np.float64)) * spec.dtype.size
      device = assignments[name]
      result[device] = result.get(device, 0.0) + size
  return result


def _extra(reply: messages.StepReply) -> dict[str, Any]:
  quartiles = np.percentile(reply.step_us, [25, 75])
  extra: dict[str, Any] = {
    "step_time_quartiles_us": [float(q) for q in quartiles],
    "step_times_us": [float(t) for t in reply.step_us],
    "setup_us": reply.setup_us,
    "fetches": _finite_scalars(reply.first_values),
    "last_fetches": _finite_scalars(reply.last_values),
  }
  if reply.high_water_bytes:
    extra["high_water_bytes"] = dict(reply.high_water_bytes)
  untimed = {gpu for trace in reply.traces for gpu in trace.untimed_gpus}
  if untimed:
    extra["untimed_gpus"] = sorted(untimed)
  values = (*reply.first_values.items(), *reply.last_values.items())
  broken = dict.fromkeys(name for name, v in values if not _finite(v))
  if broken:
    extra["non_finite"] = list(broken)
  return extra


def _finite_scalars(values: Mapping[str, np.ndarray]) -> dict[str, float]:
  return {
    name: float(value)
    for name, value in values.items()
    if value.ndim == 0
    and np.issubdtype(value.dtype, np.number)
    and _finite(value)
  }


def _finite(value: np.ndarray) -> bool:
  floating = np.issubdtype(value.dtype, np.inexact)
  return not floating or bool(np.isfinite(value).all())


def _median_peak(traces: Sequence[messages.Trace], device: str) -> float:
  peaks = [trace.peak_bytes.get(device, 0.0) for trace in traces]
  return statistics.median(peaks) if peaks else 0.0


def _busy_us(traces: Sequence[messages.Trace], device: str) -> float:
  sums = [
    sum(op.compute_us for op in trace.ops.values() if op.device == device)
    for trace in traces
  ]
  return statistics.median(sums) if sums else 0.0


def _bytes_moved(
  placement: Placement, traces: Sequence[messages.Trace]
) -> float:
  """Sums the bytes of all transfers, with sizes of the trace if known."""
  graph = placement.problem.graph
  ops = traces[0].ops if traces else {}
  total = 0.0
  for edge in transfers(graph, placement.devices)[0].tolist():
    name, output = graph.names[graph.edge_src[edge]], graph.edge_output[edge]
    seen = ops[name].output_bytes if name in ops else {}
    if output >= 0:
      total += seen.get(int(output), float(graph.edge_bytes[edge]))
  return total
