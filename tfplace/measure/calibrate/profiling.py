"""Profile of a step: the time of each op, and the overhead between ops.

Tracing slows ops, so times and overheads of a device are scaled to add up to an
untraced step.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.core.evaluation import Evaluation
from tfplace.core.problem import Problem
from tfplace.cost.measured_costs import (
  STEP_NOISE,
  step_noise,
  with_measured_times,
)
from tfplace.errors import MeasurementError
from tfplace.extraction.traced import TracedStep
from tfplace.measure import harness
from tfplace.measure.calibrate import placements
from tfplace.measure.local import runtime
from tfplace.measure.session import messages


@dataclasses.dataclass(frozen=True)
class Profile:
  """Measured costs by device kind.

  Attributes:
    times_us: kind -> op name -> microseconds in the op's kernel.
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
    graph, cluster = problem.graph, problem.cluster
    for kind, times in self.times_us.items():
      graph = with_measured_times(graph, kind, times)
    if self.noise:
      extra = {**graph.extra, STEP_NOISE: max(self.noise.values())}
      graph = dataclasses.replace(graph, extra=extra)
    devices = tuple(
      dataclasses.replace(
        d, op_overhead_us=self.op_overhead_us.get(d.kind, d.op_overhead_us)
      )
      for d in cluster.devices
    )
    cluster = dataclasses.replace(cluster, devices=devices)
    return Problem(graph, cluster, order=problem.order)


def profile(
  problem: Problem,
  traced: TracedStep,
  workers: runtime.Runtime,
  **options: Any,
) -> Profile:
  """Runs the step on one device of each kind and times its ops.

  If the device lacks the memory, all devices of the kind share the ops.

  Args:
    **options: options of `MeasurementHarness`; the default of `traced_steps` is
      9.

  Raises:
    MeasurementError: the step could not be run.
  """
  measuring = harness.MeasurementHarness(
    problem, traced, workers, **{"traced_steps": 9, **options}
  )
  times, overhead, step, noise = {}, {}, {}, {}
  for kind in dict.fromkeys(d.kind for d in problem.cluster.devices):
    if kind not in problem.graph.kinds:
      continue
    devices = [
      i for i, d in enumerate(problem.cluster.devices) if d.kind == kind
    ]
    row = placements.round_robin(problem, devices[:1], 1)
    evaluation = measuring.evaluate(row[None])[0]
    shared = _lacks_memory(evaluation) and len(devices) > 1
    if shared:
      row = placements.round_robin(problem, devices, len(devices))
      evaluation = measuring.evaluate(row[None])[0]
    _raise_failed(evaluation)
    here = np.flatnonzero(np.isin(row, devices))
    placed = [problem.graph.names[op] for op in here]
    names = [problem.cluster.devices[i].name for i in devices]
    step[kind] = evaluation.step_time_us
    noise[kind] = step_noise(evaluation.extra["step_times_us"])
    found = op_times_us(measuring.traces)
    if shared:
      overhead[kind] = gap_us(measuring.traces, names)
    else:
      running_us = step[kind] - workers.starting_us(names[0])
      found, overhead[kind] = fitted(found, running_us, (row == row[0]).all())
    # The runtime pruned ops without a time.
    times[kind] = {name: found.get(name, 0.0) for name in placed}
  return Profile(times, overhead, step, noise)


def op_times_us(traces: Sequence[messages.Trace]) -> dict[str, float]:
  """Returns lower quartiles of op times, since disturbances only add time."""
  samples: dict[str, list[float]] = {}
  for trace in traces:
    for name, op in trace.ops.items():
      samples.setdefault(name, []).append(op.compute_us)
  return {
    name: float(np.percentile(found, 25)) for name, found in samples.items()
  }


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


def _lacks_memory(evaluation: Evaluation) -> bool:
  return evaluation.extra.get("error_kind") == "out_of_memory"


def _raise_failed(evaluation: Evaluation) -> None:
  if "error" in evaluation.extra:
    raise MeasurementError(f"no profile: {evaluation.extra['error']}")
