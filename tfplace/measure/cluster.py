"""Opens the clusters that can be measured on, by the names of the flags."""

import contextlib
from collections.abc import Iterator
from typing import Any

from tfplace.core.cluster import Cluster
from tfplace.core.problem import Problem
from tfplace.errors import MeasurementError, shown
from tfplace.extraction.traced import TracedStep
from tfplace.measure import harness
from tfplace.measure.calibrate import calibration, profiling
from tfplace.measure.local import gpus, runtime, workers
from tfplace.measure.remote import hosts, hosts_file


class OpenCluster:
  """Running devices.

  Attributes:
    cluster: the devices and the measured links between them.
    runtime: the processes behind them.
  """

  def __init__(self, cluster: Cluster, processes: runtime.Runtime) -> None:
    self.cluster = cluster
    self.runtime = processes

  def harness(
    self, problem: Problem, traced: TracedStep, **options: Any
  ) -> harness.MeasurementHarness:
    """An evaluator of placements; options as of `MeasurementHarness`."""
    return harness.MeasurementHarness(problem, traced, self.runtime, **options)

  def profiled(
    self, problem: Problem, traced: TracedStep, **options: Any
  ) -> Problem:
    """The problem with op times, overheads and links as measured here.

    Options as of `MeasurementHarness`.

    Raises:
      MeasurementError: the step could not be run.
    """
    found = profiling.profile(problem, traced, self.runtime, **options)
    timed = found.apply(problem)
    measuring = self.harness(timed, traced, **{**options, "traced_steps": 0})
    return calibration.calibrated(timed, measuring)


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
    return gpus.LocalDevices(**options)
  if kind == "gpus" and counted:
    return gpus.LocalDevices(logical_gpus=int(number), **options)
  if kind == "workers" and counted:
    return workers.WorkerCluster(int(number), **options)
  if hosts_file.is_hosts_file(name):
    return hosts.HostCluster(hosts_file.load_hosts(name), **options)
  raise MeasurementError(
    f"cluster {shown(name)} cannot be measured on; choose workers:N, gpus"
    " (all of this host), gpus:N (one GPU as N logical ones), or a"
    f" {hosts_file.FORMAT} file"
  )
