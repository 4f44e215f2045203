"""Running placed graphs on real devices.

Names are resolved when first used: importing this package does not import
TensorFlow, which the measuring processes load for themselves.
"""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.measure.calibrate.profiling import Profile, profile
  from tfplace.measure.cluster import OpenCluster, open_cluster
  from tfplace.measure.evaluations import trace_events
  from tfplace.measure.harness import MeasurementHarness
  from tfplace.measure.local.gpus import LocalDevices, gpus_cluster, leave_gpus
  from tfplace.measure.local.processes import ChildError
  from tfplace.measure.local.workers import WorkerCluster, workers_cluster
  from tfplace.measure.remote.hosts import HostCluster
  from tfplace.measure.session.messages import Trace

_MODULES = {
  "ChildError": "local.processes",
  "HostCluster": "remote.hosts",
  "LocalDevices": "local.gpus",
  "MeasurementHarness": "harness",
  "OpenCluster": "cluster",
  "Profile": "calibrate.profiling",
  "Trace": "session.messages",
  "WorkerCluster": "local.workers",
  "gpus_cluster": "local.gpus",
  "leave_gpus": "local.gpus",
  "open_cluster": "cluster",
  "profile": "calibrate.profiling",
  "trace_events": "evaluations",
  "workers_cluster": "local.workers",
}


__getattr__ = lazy.exporter(
  __name__, {name: f"{__name__}.{home}" for name, home in _MODULES.items()}
)
