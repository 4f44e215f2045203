"""Running placed graphs on real devices.

Names are resolved when first used: importing this package does not import
TensorFlow, which the measuring processes load for themselves.
"""

from typing import TYPE_CHECKING

from tfplace import lazy

if TYPE_CHECKING:
  from tfplace.measure.chrome_trace import trace_events
  from tfplace.measure.gpus import LocalDevices, gpus_cluster, leave_gpus
  from tfplace.measure.harness import MeasurementHarness
  from tfplace.measure.hosts import HostCluster
  from tfplace.measure.messages import Trace
  from tfplace.measure.open import OpenCluster, open_cluster
  from tfplace.measure.prediction import Predictor
  from tfplace.measure.processes import ChildError
  from tfplace.measure.profiling import Profile, profile
  from tfplace.measure.workers import WorkerCluster, workers_cluster

_MODULES = {
  "ChildError": "processes",
  "HostCluster": "hosts",
  "LocalDevices": "gpus",
  "MeasurementHarness": "harness",
  "OpenCluster": "open",
  "Predictor": "prediction",
  "Profile": "profiling",
  "Trace": "messages",
  "WorkerCluster": "workers",
  "gpus_cluster": "gpus",
  "leave_gpus": "gpus",
  "open_cluster": "open",
  "profile": "profiling",
  "trace_events": "chrome_trace",
  "workers_cluster": "workers",
}


__getattr__ = lazy.exporter(
  __name__, {name: f"{__name__}.{home}" for name, home in _MODULES.items()}
)
