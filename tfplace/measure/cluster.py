"""Clusters of real devices, opened by their names in flags."""

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfplace.errors import MeasurementError, shown
from tfplace.extraction.traced import TracedStep
from tfplace.graph.cluster import Cluster
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.progress import Progress, silent
from tfplace.measure import harness
from tfplace.measure.calibrate import calibration, profiling
from tfplace.measure.local import devices, runtime
from tfplace.measure.remote import hosts, resolvers, tasks, workers


class OpenCluster:
  """Running devices: a `cluster` with measured links, and its `runtime`."""

  def __init__(self, cluster: Cluster, processes: runtime.Runtime) -> None:
    self.cluster = cluster
    self.runtime = processes

  def harness(
    self, problem: Problem, traced: TracedStep, **options: Any
  ) -> harness.MeasurementHarness:
    """Creates an evaluator of placements; see `MeasurementHarness`."""
    return harness.MeasurementHarness(problem, traced, self.runtime, **options)

  def profiled(
    self,
    problem: Problem,
    traced: TracedStep,
    guesses: calibration.Guesses,
    *,
    measure_s: float = math.inf,
    on_stage: Progress = silent,
    **options: Any,
  ) -> Problem:
    """Replaces op times, overheads and links by measurements on this cluster.

    Args:
      guesses: placements for the calibration; see `calibration.calibrated`.
      measure_s: seconds to run steps; the profile takes at most half of them.
      on_stage: called at the start of each stage.
      **options: options of `MeasurementHarness`.

    Raises:
      MeasurementError: the step could not be run.
    """
    began = time.monotonic()
    options["on_stage"] = lambda what: on_stage(f"profiling: {what}")
    found = profiling.profile(
      problem, traced, self.runtime, **options, measure_s=measure_s / 2
    )
    timed = found.apply(problem)
    options["on_stage"] = lambda what: on_stage(f"calibrating: {what}")
    options |= {"traced_steps": 0}
    left_s = measure_s - (time.monotonic() - began)
    options |= {"merges": False, "measure_s": left_s}
    measuring = self.harness(timed, traced, **options)
    return calibration.calibrated(timed, measuring, guesses)

  def refitted(
    self,
    problem: Problem,
    placements: Sequence[Placement],
    measured: Sequence[Evaluation],
  ) -> Problem:
    """Refits the costs to placements that ran on this cluster.

    Args:
      problem: result of `profiled` or of an earlier call.
      measured: their evaluations; not finite for failed runs.
    """
    starting_us = max(map(self.runtime.starting_us, self.runtime.device_names))
    rows = np.stack([placement.devices for placement in placements])
    return calibration.refitted(problem, rows, measured, starting_us)


@contextlib.contextmanager
def open_cluster(name: str, **options: Any) -> Iterator[OpenCluster]:
  """Starts the devices called `name`, and stops them on exit.

  Args:
    name: "workers:N", "gpus" (all GPUs of this host), "gpus:N" (its first GPU
      as N logical GPUs), the path of a tfplace.hosts.v1 file, or the name of a
      cluster resolver: see `resolvers.resolve`.
    **options: options of `WorkerCluster`, `LocalDevices` or `HostCluster`.

  Raises:
    MeasurementError: the name is invalid, there is no GPU, or the processes did
      not start.
  """
  with _runtime(name, options) as processes:
    yield OpenCluster(processes.cluster(), processes)


def _runtime(name: str, options: dict[str, Any]) -> runtime.Runtime:
  kind, _, number = name.partition(":")
  counted = number.isascii() and number.isdigit() and len(number) <= 6
  if name == "gpus":
    return devices.LocalDevices(**options)
  if kind == "gpus" and counted:
    return devices.LocalDevices(logical_gpus=int(number), **options)
  if kind == "workers" and counted:
    return devices.WorkerCluster(int(number), **options)
  if workers.is_hosts_file(name):
    return hosts.HostCluster(workers.load_hosts(name), **options)
  if resolvers.is_resolver(name):
    task = resolvers.resolve(name)
    # Tasks start together, and workers that run already need no time.
    wait_s = 0.0 if task.index is None else tasks.START_S
    return hosts.HostCluster(task.hosts, wait_s=wait_s, **options)
  raise MeasurementError(
    f"cluster {shown(name)} cannot be measured on; choose workers:N, gpus"
    " (all of this host), gpus:N (one GPU as N logical ones), a"
    f" {workers.FORMAT} file, {', '.join(resolvers.NAMES[:-1])} or"
    f" {resolvers.NAMES[-1]}"
  )
