"""Opens the clusters that can be measured on, by the names of the flags."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfplace.core.cluster import Cluster
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluation
from tfplace.errors import MeasurementError, shown
from tfplace.extraction import stages
from tfplace.extraction.traced import TracedStep
from tfplace.measure import harness
from tfplace.measure.calibrate import calibration, profiling
from tfplace.measure.local import devices, runtime
from tfplace.measure.remote import hosts, workers


class OpenCluster:
  """Running devices.

  Attributes:
    cluster: the devices and the measured links between them.
    runtime: their processes.
  """

  def __init__(self, cluster: Cluster, processes: runtime.Runtime) -> None:
    self.cluster = cluster
    self.runtime = processes

  def harness(
    self, problem: Problem, traced: TracedStep, **options: Any
  ) -> harness.MeasurementHarness:
    """An evaluator of placements; the options are the harness'."""
    return harness.MeasurementHarness(problem, traced, self.runtime, **options)

  def profiled(
    self,
    problem: Problem,
    traced: TracedStep,
    measure_s: float = math.inf,
    on_stage: Callable[[str], None] = stages.ignore,
    guesses: calibration.Guesses | None = None,
    **options: Any,
  ) -> Problem:
    """The problem with op times, overheads and links as measured here.

    Args:
      problem: with estimated costs.
      traced: its step.
      measure_s: seconds to run steps, half of them at most for the profile.
      on_stage: called as each stage begins.
      guesses: placements to calibrate with, see `calibration.calibrated`.
      **options: of `MeasurementHarness`.

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
    measuring = self.harness(timed, traced, **options, measure_s=left_s)
    return calibration.calibrated(timed, measuring, guesses=guesses)

  def refitted(
    self,
    problem: Problem,
    placements: Sequence[Placement],
    measured: Sequence[Evaluation],
  ) -> Problem:
    """The problem with costs that match placements that ran here.

    Args:
      problem: as `profiled` or an earlier call returned it.
      placements: what ran.
      measured: what each took; not finite where it did not run.
    """
    starting_us = max(map(self.runtime.starting_us, self.runtime.device_names))
    rows = np.stack([placement.devices for placement in placements])
    return calibration.refitted(problem, rows, measured, starting_us)


@contextlib.contextmanager
def open_cluster(name: str, **options: Any) -> Iterator[OpenCluster]:
  """Starts the devices that `name` says, and ends them on exit.

  Args:
    name: "workers:N", "gpus" (all of this host's), "gpus:N" (its first
      GPU as N logical ones), or a tfplace.hosts.v1 file of workers elsewhere.
    **options: of `WorkerCluster`, `LocalDevices` or `HostCluster`.

  Raises:
    MeasurementError: no such name, no GPU here, or the processes did not
      come up.
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
  raise MeasurementError(
    f"cluster {shown(name)} cannot be measured on; choose workers:N, gpus"
    " (all of this host), gpus:N (one GPU as N logical ones), or a"
    f" {workers.FORMAT} file"
  )
