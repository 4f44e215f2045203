"""The evaluator that runs placements on real devices.

It fills in the same protocol as the simulator. A placement that cannot be run
gets an evaluation that says so, and the next one starts on fresh processes.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.errors import MeasurementError
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.extract.traced import TracedStep
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.measure import messages, placed_step, processes, runtime


class MeasurementHarness:
  """Times placements of one traced step on the processes of a runtime.

  Args:
    problem: its graph is that of `traced`, its cluster that of `workers`.
    traced: the step that runs.
    workers: a `WorkerCluster` or `LocalDevices`; started when needed.
    warmup: steps before the clock.
    steps: timed steps; the step time is their median.
    timeout_s: for one placement, all of it; then it counts as hanging.
    traced_steps: further steps with step stats; 0: no profile, no peaks.
    phase_s: warming up, timing and tracing each stop after so many seconds,
      so that a slow step is run less often (3 timed steps at least).
    seed: of inputs without a sample value.

  Attributes:
    traces: the step stats of the last placement that ran.

  Raises:
    MeasurementError: the ops of `problem` are not the nodes of `traced`, or
      its devices not those of `workers`.
  """

  def __init__(
    self,
    problem: Problem,
    traced: TracedStep,
    workers: runtime.Runtime,
    warmup: int = 3,
    steps: int = 10,
    timeout_s: float = 120.0,
    traced_steps: int = 3,
    phase_s: float = 20.0,
    seed: int = 0,
  ) -> None:
    _check(problem, traced, workers)
    self.problem = problem
    self.traces: Sequence[messages.Trace] = ()
    self._traced = traced
    self._workers = workers
    self._counts = placed_step.Counts(
      max(0, warmup), max(1, steps), max(0, traced_steps), phase_s
    )
    self._timeout_s = timeout_s
    self._seed = seed

  def evaluate(
    self, placements: np.ndarray | Sequence[Placement]
  ) -> list[Evaluation]:
    """Measures [batch, num_ops] device indices, or `Placement`s, in order.

    `step_time_us` is the median; `extra` has `step_time_quartiles_us`,
    `step_times_us`, `setup_us`, `fetches` and `last_fetches` (scalars of the
    first and the last step) and `non_finite` (fetches with a NaN or an
    infinity), or `error` and `error_kind` where the placement could not be
    run.

    Raises:
      PlacementError: a row is not a placement of the problem.
    """
    rows = [
      p if isinstance(p, Placement) else Placement(self.problem, p)
      for p in placements
    ]
    return [self._measure(row) for row in rows]

  def _measure(self, placement: Placement) -> Evaluation:
    assignments = placement.assignments
    self.traces = ()
    try:
      request = placed_step.step_request(
        self._traced, assignments, self._counts, self._seed
      )
      reply = self._workers.run(request, self._timeout_s)
    except processes.ChildError as error:
      return self._failed(error)
    self.traces = reply.traces
    return self._measured(placement, assignments, reply)

  def _failed(self, error: processes.ChildError) -> Evaluation:
    zeros = {d.name: 0.0 for d in self.problem.cluster.devices}
    return Evaluation(
      step_time_us=math.inf,
      feasible=False,
      peak_memory_bytes=zeros,
      busy_us=zeros,
      bytes_moved=0.0,
      lower_bound_us=self.problem.lower_bound_us,
      source="measured",
      extra={"error": str(error), "error_kind": error.kind},
    )

  def _measured(
    self,
    placement: Placement,
    assignments: Mapping[str, str],
    reply: messages.StepReply,
  ) -> Evaluation:
    held = placed_step.held_bytes(self._traced, assignments)
    devices = self.problem.cluster.devices
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
      lower_bound_us=self.problem.lower_bound_us,
      source="measured",
      extra=_extra(reply),
    )


def _check(
  problem: Problem, traced: TracedStep, workers: runtime.Runtime
) -> None:
  nodes = {node.name for node in traced.graph_def.node}
  different = nodes.symmetric_difference(problem.graph.names)
  if different:
    name = min(different)
    where = "model's step" if name in nodes else "graph of the problem"
    raise MeasurementError(
      f"graph {problem.graph.name!r} is not that of the step to run:"
      f" {len(different)} ops are in one of them only, such as {name!r} in the"
      f" {where}",
      op=name,
    )
  known = set(workers.device_names)
  for device in problem.cluster.devices:
    if device.name not in known:
      raise MeasurementError(
        f"device {device.name!r} of cluster {problem.cluster.name!r} is none"
        f" of those to measure on: {', '.join(workers.device_names)}",
        device=device.name,
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
  broken = [n for n, v in reply.last_values.items() if not _finite(v)]
  if broken:
    extra["non_finite"] = broken
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
