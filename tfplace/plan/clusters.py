"""Clusters by user-given name.

Presets and cluster files require no device. `local_devices` describes this
process's logical devices. "workers:N", "gpus", hosts files and cluster
resolvers name devices that `tfplace.measure` starts.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from tfplace.errors import FormatError, shown
from tfplace.formats import load_cluster
from tfplace.graph.cluster import Cluster
from tfplace.hardware.presets import cluster_preset

if TYPE_CHECKING:
  from tfplace.measure.cluster import OpenCluster
  from tfplace.plan.stages import Stages

ClusterLike: TypeAlias = Cluster | str | os.PathLike[str]


def find_cluster(cluster: ClusterLike | None) -> Cluster:
  """Returns the description of a cluster without starting devices.

  Args:
    cluster: a `Cluster`, the name of a preset, the path of a cluster file, or
      None for the logical devices of this process.

  Raises:
    FormatError: the preset is unknown, the file is invalid, or the argument
      has another type.
  """
  if cluster is None:
    from tfplace.plan import local_devices  # This import loads TensorFlow.

    return local_devices.local_cluster()
  if isinstance(cluster, Cluster):
    return cluster
  if isinstance(cluster, str):
    if _names_devices(cluster):
      raise FormatError(
        f"cluster {shown(cluster)} names running devices; a preset or a"
        " tfplace.cluster.v1 file describes devices"
      )
    if not cluster.endswith((".json", ".json.gz")):
      return cluster_preset(cluster)
  elif not isinstance(cluster, os.PathLike):
    raise FormatError(
      "a cluster is a Cluster, the name of a preset or a file, not"
      f" {cluster!r:.60}"
    )
  return load_cluster(cluster)


def is_live(name: str) -> bool:
  """Returns whether a name refers to running devices, local or remote."""
  from tfplace.measure.remote import workers

  return _names_devices(name) or workers.is_hosts_file(name)


def _names_devices(name: str) -> bool:
  from tfplace.measure.remote import resolvers

  local = name.partition(":")[0] in ("gpus", "workers")
  return local or resolvers.is_resolver(name)


@contextlib.contextmanager
def opened(
  name: str, show: "Stages"
) -> "Iterator[tuple[Cluster, OpenCluster | None]]":
  """Opens a cluster by name, and starts its devices if it has any."""
  if not is_live(name):
    yield find_cluster(name), None
    return
  from tfplace.extraction.keras_inputs import trace_for_gpus
  from tfplace.measure.cluster import open_cluster
  from tfplace.measure.local.devices import leave_gpus

  # Remote devices may be this host's GPUs.
  if name.partition(":")[0] != "workers" and leave_gpus():
    trace_for_gpus()
  with contextlib.ExitStack() as stack:
    with show("starting", f" {name}") as on_stage:
      live = stack.enter_context(open_cluster(name, on_stage))
    yield live.cluster, live
