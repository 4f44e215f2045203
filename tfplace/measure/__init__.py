"""Execution and timing of placed graphs on real devices."""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.measure.calibrate.profiling import Profile, profile
  from tfplace.measure.cluster import LiveStep, OpenCluster, open_cluster
  from tfplace.measure.harness import MeasurementHarness
  from tfplace.measure.local.devices import (
    LocalDevices,
    WorkerCluster,
    leave_gpus,
  )
  from tfplace.measure.local.runtime import ChildError
  from tfplace.measure.remote.hosts import HostCluster
  from tfplace.measure.session.messages import Trace

_MODULES = {
  "ChildError": "local.runtime",
  "HostCluster": "remote.hosts",
  "LiveStep": "cluster",
  "LocalDevices": "local.devices",
  "MeasurementHarness": "harness",
  "OpenCluster": "cluster",
  "Profile": "calibrate.profiling",
  "Trace": "session.messages",
  "WorkerCluster": "local.devices",
  "leave_gpus": "local.devices",
  "open_cluster": "cluster",
  "profile": "calibrate.profiling",
}


__getattr__ = lazy.exporter(
  __name__, {name: f"{__name__}.{home}" for name, home in _MODULES.items()}
)
