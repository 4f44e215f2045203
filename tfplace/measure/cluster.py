"""Clusters of real devices, opened by their names in flags, and their steps."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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


class OpenCluster(NamedTuple):
  """Running devices: a cluster with measured links, and its processes."""

  cluster: Cluster
  runtime: runtime.Runtime

  def harness(
    self, problem: Problem, traced: TracedStep, **options: Any
  ) -> harness.MeasurementHarness:
    """Creates an evaluator of placements; see `MeasurementHarness`."""
    return harness.MeasurementHarness(problem, traced, self.runtime, **options)

  def step(
    self, traced: TracedStep, measure_s: float = math.inf, **options: Any
  ) -> "LiveStep":
    """Returns a step that runs here; see `LiveStep`."""
    return LiveStep(self, traced, measure_s, options)


@dataclasses.dataclass(frozen=True)
class LiveStep:
  """Step that runs on open devices.

  Attributes:
    devices: the open devices.
    traced: the traced step.
    measure_s: time limit for running steps, in seconds. Half of it is for
      profiling and calibration.
    options: options of `MeasurementHarness`.
  """

  devices: OpenCluster
  traced: TracedStep
  measure_s: float
  options: Mapping[str, Any]

  def shared(self, count: int) -> "LiveStep":
    """Returns a copy with an equal share of the seconds for each step."""
    return dataclasses.replace(self, measure_s=self.measure_s / count)

  @property
  def run_s(self) -> float:
    """Time limit for running placements, in seconds."""
    return self.measure_s / 2

  def harness(
    self, problem: Problem, **more: Any
  ) -> harness.MeasurementHarness:
    """Opens a harness for the problem, with `more` options."""
    options = {"measure_s": self.run_s, **self.options, **more}
    return self.devices.harness(problem, self.traced, **options)

  def profiled(
    self,
    problem: Problem,
    guesses: calibration.Guesses,
    on_stage: Progress = silent,
  ) -> Problem:
    """Replaces op times, overheads and links by measured ones.

    Args:
      problem: problem with estimated costs.
      guesses: placements for the calibration; see `calibration.calibrated`.
      on_stage: called at the start of each stage.

    Raises:
      MeasurementError: the step could not be run.
    """
    limit_s = self.measure_s / 2
    until = time.monotonic() + limit_s
    profile = profiling.profile(
      problem,
      self.traced,
      self.devices.runtime,
      measure_s=limit_s / 2,
      on_stage=lambda what: on_stage(f"profiling: {what}"),
      **self.options,
    )
    timed = profile.apply(problem)
    calibrating = self.harness(
      timed,
      traced_steps=0,
      merges=False,
      measure_s=until - time.monotonic(),
      on_stage=lambda what: on_stage(f"calibrating: {what}"),
    )
    return calibration.calibrated(timed, calibrating, guesses)

  def refitted(
    self,
    problem: Problem,
    placements: Sequence[Placement],
    measured: Sequence[Evaluation],
  ) -> Problem:
    """Refits the costs to placements that ran on these devices.

    Args:
      problem: result of `profiled` or of an earlier call.
      placements: the placements.
      measured: their evaluations; not finite for failed runs.
    """
    running = self.devices.runtime
    starting_us = max(map(running.starting_us, running.device_names))
    rows = np.stack([placement.devices for placement in placements])
    return calibration.refitted(problem, rows, measured, starting_us)


@contextlib.contextmanager
def open_cluster(
  name: str, on_stage: Progress = silent, **options: Any
) -> Iterator[OpenCluster]:
  """Starts the devices called `name`, and stops them on exit.

  Args:
    name: "workers:N", "gpus" (all GPUs of this host), "gpus:N" (its first GPU
      as N logical GPUs), the path of a tfplace.hosts.v1 file, or the name of a
      cluster resolver: see `resolvers.resolve`.
    on_stage: called with each stage of measuring the links.
    **options: options of `WorkerCluster`, `LocalDevices` or `HostCluster`.

  Raises:
    MeasurementError: the name is invalid, there is no GPU, or the processes did
      not start.
  """
  with _runtime(name, options) as processes:
    processes.on_stage = on_stage
    cluster = processes.cluster()
    processes.on_stage = silent  # Its display may end here.
    yield OpenCluster(cluster, processes)


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
