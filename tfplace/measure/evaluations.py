"""Turns what a run reported into an `Evaluation` or a Chrome trace.

In the trace, which Perfetto opens, every device is a track with its ops, and
one below it with what it received. The format is the "Trace Event Format" of
Chromium's catapult project; its times are microseconds, as ours.
(`tfplace.report.trace` does the same for a simulated step; both may share a
file.)
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.measure.local import processes
from tfplace.measure.session import messages

Event = dict[str, Any]
MEASURED = 10  # process id; simulated steps use lower ones


def trace_events(
  trace: messages.Trace,
  devices: Sequence[str],
  title: str = "measured devices",
) -> Iterator[Event]:
  """One traced step.

  Args:
    trace: of the step.
    devices: their names, in the order of the tracks.
    title: of the group of tracks.
  """
  yield _meta("process_name", 0, {"name": title})
  yield _meta("process_sort_index", 0, {"sort_index": MEASURED})
  tracks = {name: 2 * i for i, name in enumerate(devices)}
  for name, track in tracks.items():
    yield _meta("thread_name", track, {"name": name})
    yield _meta("thread_name", track + 1, {"name": f"{name} receives"})
  for op, time in trace.ops.items():
    if time.device in tracks:
      sizes = {str(i): size for i, size in time.output_bytes.items()}
      args = {"output_bytes": sizes}
      track = tracks[time.device]
      yield _slice(track, op, time.start_us, time.compute_us, args)
  for move in trace.transfers:
    if move.device in tracks:
      track = tracks[move.device] + 1
      yield _slice(track, move.label, move.start_us, move.duration_us, {})


def _meta(name: str, thread: int, args: Event) -> Event:
  return {"ph": "M", "name": name, "pid": MEASURED, "tid": thread, "args": args}


def _slice(
  thread: int, name: str, start_us: float, took_us: float, args: Event
) -> Event:
  return {
    "ph": "X",
    "name": name,
    "pid": MEASURED,
    "tid": thread,
    "ts": float(start_us),
    "dur": float(took_us),
    "args": args,
  }


def failed(problem: Problem, error: processes.ChildError) -> Evaluation:
  """The evaluation of a placement that could not be run."""
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
  placement: Placement,
  reply: messages.StepReply,
  held_bytes: Mapping[str, float],
) -> Evaluation:
  """The evaluation of a placement that ran.

  Args:
    placement: what ran.
    reply: what it took.
    held_bytes: device -> bytes held for the whole step, which traces lack.
  """
  devices = placement.problem.cluster.devices
  peaks = {
    d.name: held_bytes.get(d.name, 0.0) + _median_peak(reply.traces, d.name)
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
    extra=_extra(reply),
  )


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
  broken = non_finite(reply)
  if broken:
    extra["non_finite"] = broken
  return extra


def non_finite(reply: messages.StepReply) -> list[str]:
  """Fetches with a NaN or an infinity in the first or the last step."""
  values = (*reply.first_values.items(), *reply.last_values.items())
  return list(dict.fromkeys(n for n, v in values if not _finite(v)))


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
  """Median over steps of the time in kernels on the device."""
  sums = [
    sum(op.compute_us for op in trace.ops.values() if op.device == device)
    for trace in traces
  ]
  return statistics.median(sums) if sums else 0.0


def _bytes_moved(
  placement: Placement, traces: Sequence[messages.Trace]
) -> float:
  """Bytes of the tensors that crossed, by the sizes that the trace saw.

  A tensor goes once to each device that reads it. Without a trace, the sizes
  are those of the graph.
  """
  graph, devices = placement.problem.graph, placement.devices
  src, dst = graph.edge_src, graph.edge_dst
  crossing = (devices[src] != devices[dst]) & (graph.edge_output >= 0)
  ops = traces[0].ops if traces else {}
  sent: dict[tuple[int, int, int], float] = {}
  for edge in np.flatnonzero(crossing):
    name, output = graph.names[src[edge]], int(graph.edge_output[edge])
    seen = ops[name].output_bytes.get(output) if name in ops else None
    size = float(graph.edge_bytes[edge]) if seen is None else seen
    sent[int(src[edge]), output, int(devices[dst[edge]])] = size
  return sum(sent.values())
