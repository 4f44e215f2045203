"""Profile of a step: the time of each op, and the overhead between ops.

Tracing slows ops, so times and overheads of a device are scaled to add up to an
untraced step.
"""

import dataclasses
import itertools
import logging
import statistics
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tfplace.cost.measured_costs import (
  STEP_NOISE,
  step_noise,
  with_measured_times,
)
from tfplace.extraction.traced import TracedStep
from tfplace.graph.cluster import CPU, Cluster
from tfplace.graph.problem import Problem
from tfplace.measure import harness
from tfplace.measure.calibrate import placements
from tfplace.measure.local import runtime
from tfplace.measure.session import messages

_logger = logging.getLogger("tfplace")
_NO_KERNELS = (
  "TensorFlow traced no kernels on %s, because CUPTI (libcupti.so) is missing"
  " or not permitted: op times of %r are estimates, scaled to its measured step"
)


@dataclasses.dataclass(frozen=True)
class Profile:
  """Measured costs by device kind.

  Attributes:
    times_us: kind -> op name -> microseconds in the op's kernel, for the ops
      that ran on the kind.
    op_overhead_us: kind -> microseconds between two ops of one device.
    step_time_us: kind -> time of the step with every op on the kind's first
      device (on all its devices if one lacks the memory). Ops that the kind
      cannot run are on other devices.
    noise: kind -> relative uncertainty of that step time, a median.
  """

  times_us: Mapping[str, Mapping[str, float]]
  op_overhead_us: Mapping[str, float]
  step_time_us: Mapping[str, float]
  noise: Mapping[str, float] = dataclasses.field(default_factory=dict)

  def apply(self, problem: Problem) -> Problem:
    """Replaces the problem's times and overheads by the measured ones."""
    graph = problem.graph
    for kind, times in self.times_us.items():
      graph = with_measured_times(graph, kind, times)
    if self.noise:
      extra = {**graph.extra, STEP_NOISE: max(self.noise.values())}
      graph = dataclasses.replace(graph, extra=extra)
    cluster = with_overheads(problem.cluster, self.op_overhead_us)
    return Problem(graph, cluster, order=problem.order)


def with_overheads(
  cluster: Cluster, op_overhead_us: Mapping[str, float]
) -> Cluster:
  """Returns a cluster with other overheads of the devices of some kinds."""
  devices = tuple(
    dataclasses.replace(
      d, op_overhead_us=op_overhead_us.get(d.kind, d.op_overhead_us)
    )
    for d in cluster.devices
  )
  return dataclasses.replace(cluster, devices=devices)


# Runs a placement, [num_ops] devices; returns step times, in microseconds, and
# traces. Raises MeasurementError, a ChildError of kind "out_of_memory" for lack
# of memory.
Run: TypeAlias = Callable[
  [np.ndarray], tuple[Sequence[float], Sequence[messages.Trace]]
]


def profile(
  problem: Problem, traced: TracedStep, workers: runtime.Runtime, **options: Any
) -> Profile:
  """Runs the step on one device of each kind and times its ops.

  Args:
    **options: options of `MeasurementHarness`; the default of `traced_steps` is
      9.

  Raises:
    MeasurementError: the step could not be run.
  """
  measuring = harness.MeasurementHarness(
    *(problem, traced, workers),
    merges=False,
    **{"traced_steps": 9, **options},
  )

  def run(row: np.ndarray) -> tuple[Sequence[float], Sequence[messages.Trace]]:
    (evaluation,) = measuring.evaluate(row[None])
    if "error" in evaluation.extra:
      kind, why = evaluation.extra["error_kind"], evaluation.extra["error"]
      raise runtime.ChildError(kind, f"no profile: {why}")
    return evaluation.extra["step_times_us"], measuring.traces

  return profiled(problem, run, workers.starting_us)


def profiled(
  problem: Problem,
  run: Run,
  starting_us: Callable[[str], float] = lambda _: 0.0,
) -> Profile:
  """Times the ops of a step on one device of each kind.

  If the device lacks the memory, all devices of the kind share the ops. Beside
  GPUs, CPUs run only ops without a GPU kernel and ops with variables (updates,
  which placements keep in host memory where GPUs are short of it). Where
  TensorFlow traces no kernels on a GPU, estimates take their place.

  Args:
    starting_us: device -> time in each step before it starts.

  Raises:
    MeasurementError: the step could not be run.
  """
  graph, devices = problem.graph, problem.cluster.devices
  kinds = [
    k for k in dict.fromkeys(d.kind for d in devices) if k in graph.kinds
  ]
  main = [k for k in kinds if not k.startswith(CPU)] or kinds
  times: dict[str, dict[str, float]] = {}
  overhead, step, noise = {}, {}, {}
  for kind in sorted(kinds, key=lambda kind: kind not in main):
    here = [i for i, d in enumerate(devices) if d.kind == kind]
    names = [devices[i].name for i in here]
    if kind in main:
      row, (step_us, traces) = _run_on(problem, here, run)
    else:
      row = placements.with_variables_on(problem, row, here[0])
      if not np.isin(row, here).any():
        continue
      step_us, traces = run(row)
    ops = np.flatnonzero(np.isin(row, here))
    op_us = op_times_us(traces)
    untimed = {gpu for trace in traces for gpu in trace.untimed_gpus}
    if untimed.intersection(names):
      _logger.warning(_NO_KERNELS, " and ".join(names), graph.name)
      op_us |= {graph.names[op]: float(graph.time_us[kind][op]) for op in ops}
    if kind in main:
      step[kind], noise[kind] = statistics.median(step_us), step_noise(step_us)
      if len(np.unique(row[ops])) > 1:
        overhead[kind] = gap_us(traces, names)
      else:
        running_us = step[kind] - starting_us(names[0])
        alone = len(ops) == graph.num_ops or bool(untimed)
        op_us, overhead[kind] = fitted(op_us, running_us, alone)
    # The runtime pruned ops without a time.
    times[kind] = {
      graph.names[op]: op_us.get(graph.names[op], 0.0) for op in ops
    }
  return Profile(times, overhead, step, noise)


def _run_on(
  problem: Problem, devices: Sequence[int], run: Run
) -> tuple[np.ndarray, tuple[Sequence[float], Sequence[messages.Trace]]]:
  """Runs a step on the first of some equal devices, or on all of them."""
  row = placements.round_robin(problem, devices[:1], 1)
  try:
    return row, run(row)
  except runtime.ChildError as error:
    if error.kind != "out_of_memory" or len(devices) == 1:
      raise
  row = placements.round_robin(problem, devices, len(devices))
  return row, run(row)


def op_times_us(traces: Sequence[messages.Trace]) -> dict[str, float]:
  """Returns lower quartiles of op times, since disturbances only add time."""
  samples: dict[str, list[float]] = {}
  for trace in traces:
    for name, op in trace.ops.items():
      samples.setdefault(name, []).append(op.compute_us)
  return {name: float(np.percentile(us, 25)) for name, us in samples.items()}


def fitted(
  times_us: Mapping[str, float], step_time_us: float, alone: bool = True
) -> tuple[dict[str, float], float]:
  """Fits op times and overhead per op to the time of a step.

  Args:
    times_us: op name -> time in traced steps.
    step_time_us: time of the step without tracing.
    alone: whether one device runs all ops; otherwise ops overlap and their
      times stay unchanged.
  """
  total_us = sum(times_us.values())
  rest_us = step_time_us - total_us
  if rest_us >= 0:
    # Rule 2 (device) of docs/simulation.md: the step ends with its last op,
    # before that op's overhead.
    timed = sum(us > 0 for us in times_us.values())
    return dict(times_us), rest_us / max(1, timed - 1)
  scale = max(step_time_us, 0.0) / total_us if alone else 1.0
  return {name: us * scale for name, us in times_us.items()}, 0.0


def gap_us(traces: Sequence[messages.Trace], devices: Container[str]) -> float:
  """Returns the median time between consecutive ops of a device.

  Estimates the overhead per op in steps on several devices, where the idle time
  of a device is not all overhead.
  """
  gaps: list[float] = []
  for trace in traces:
    by_device: dict[str, list[messages.OpTime]] = {}
    for op in trace.ops.values():
      if op.device in devices:
        by_device.setdefault(op.device, []).append(op)
    for ops in by_device.values():
      ops.sort(key=lambda op: op.start_us)
      gaps += [
        max(0.0, after.start_us - before.start_us - before.compute_us)
        for before, after in itertools.pairwise(ops)
      ]
  return statistics.median(gaps) if gaps else 0.0
