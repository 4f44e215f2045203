"""Profiles a step: the time of each op, and the overhead between ops.

A profile replaces the estimates of a problem, so that the simulator predicts
these devices and not described ones.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.cost.profile import with_measured_times
from tfplace.errors import MeasurementError
from tfplace.extraction.traced import TracedStep
from tfplace.measure import harness
from tfplace.measure.calibrate import splits
from tfplace.measure.local import runtime
from tfplace.measure.session import messages


@dataclasses.dataclass(frozen=True)
class Profile:
  """Measured costs, by device kind.

  Attributes:
    times_us: kind -> op name -> microseconds in the op's kernel.
    op_overhead_us: kind -> microseconds between two ops of one device.
    step_time_us: kind -> the step with every op on the first device of the
      kind (on all of them where one lacks the memory), or elsewhere where the
      kind cannot run it.
  """

  times_us: Mapping[str, Mapping[str, float]]
  op_overhead_us: Mapping[str, float]
  step_time_us: Mapping[str, float]

  def apply(self, problem: Problem) -> Problem:
    """The problem with measured times and overheads."""
    graph, cluster = problem.graph, problem.cluster
    for kind, times in self.times_us.items():
      graph = with_measured_times(graph, kind, times)
    devices = tuple(
      dataclasses.replace(
        d, op_overhead_us=self.op_overhead_us.get(d.kind, d.op_overhead_us)
      )
      for d in cluster.devices
    )
    return Problem(graph, dataclasses.replace(cluster, devices=devices))


def profile(
  problem: Problem,
  traced: TracedStep,
  workers: runtime.Runtime,
  **options: Any,
) -> Profile:
  """Runs the step on one device of each kind and times its ops.

  Where that device lacks the memory, the kind's devices share the ops.

  Args:
    problem: with estimated costs.
    traced: its step.
    workers: the devices.
    **options: of `MeasurementHarness`; more steps are traced by default.

  Raises:
    MeasurementError: the step could not be run.
  """
  measuring = harness.MeasurementHarness(
    problem, traced, workers, **{"traced_steps": 9, **options}
  )
  times, overhead, step = {}, {}, {}
  for kind in dict.fromkeys(d.kind for d in problem.cluster.devices):
    if kind not in problem.graph.kinds:
      continue
    devices = [
      i for i, d in enumerate(problem.cluster.devices) if d.kind == kind
    ]
    row = splits.turns(problem, devices[:1], 1)
    evaluation = measuring.evaluate(row[None])[0]
    shared = _lacks_memory(evaluation) and len(devices) > 1
    if shared:
      row = splits.turns(problem, devices, len(devices))
      evaluation = measuring.evaluate(row[None])[0]
    _raise_failed(evaluation)
    here = np.flatnonzero(np.isin(row, devices))
    placed = [problem.graph.names[op] for op in here]
    names = [problem.cluster.devices[i].name for i in devices]
    # An op that the runtime pruned took no time.
    times[kind] = dict.fromkeys(placed, 0.0) | op_times_us(
      measuring.traces, names
    )
    step[kind] = evaluation.step_time_us
    running_us = step[kind] - workers.starting_us(names[0])
    overhead[kind] = (
      gap_us(measuring.traces, names)
      if shared
      else overhead_us(running_us, measuring.traces)
    )
  return Profile(times, overhead, step)


def op_times_us(
  traces: Sequence[messages.Trace], devices: Container[str]
) -> dict[str, float]:
  """Op name -> median over the traces of its time on any of `devices`."""
  samples: dict[str, list[float]] = {}
  for trace in traces:
    for name, op in trace.ops.items():
      if op.device in devices:
        samples.setdefault(name, []).append(op.compute_us)
  return {name: statistics.median(found) for name, found in samples.items()}


def overhead_us(step_time_us: float, traces: Sequence[messages.Trace]) -> float:
  """Time per op that the step took beyond its kernels, on one device."""
  sums = [sum(op.compute_us for op in t.ops.values()) for t in traces]
  counts = [sum(op.compute_us > 0 for op in t.ops.values()) for t in traces]
  rest = step_time_us - statistics.median(sums)
  return max(0.0, rest) / max(1.0, statistics.median(counts))


def gap_us(traces: Sequence[messages.Trace], devices: Container[str]) -> float:
  """Median time between the end of an op and the start of its device's next.

  For steps on several devices, whose idle time is no overhead.
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
