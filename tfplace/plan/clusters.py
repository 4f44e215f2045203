"""Clusters by every name that users give them.

Presets and files, which need no device; this process's logical devices; and
the running devices that `tfplace.measure` starts ("workers:N", "gpus", a file
of hosts).
"""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from tfplace.core.cluster import Cluster
from tfplace.formats import cluster as cluster_format

if TYPE_CHECKING:
  from tfplace.measure import OpenCluster
  from tfplace.plan.planner import Stages

ClusterLike: TypeAlias = Cluster | str | os.PathLike[str]


def find_cluster(cluster: ClusterLike | None) -> Cluster:
  """The description of a cluster; starts no devices.

  Args:
    cluster: a `Cluster`, the name of a preset, the path of a file, or None for
      the logical devices of this process.

  Raises:
    FormatError: no such preset, a broken file, or something else.
  """
  if cluster is not None:
    return cluster_format.find_cluster(cluster)
  from tfplace.plan import local_devices  # imports TensorFlow

  return local_devices.local_cluster()


def is_live(name: str) -> bool:
  """Whether a name is of devices that run, here or on other hosts."""
  from tfplace.measure.remote import workers

  kind = name.partition(":")[0]
  return kind in ("gpus", "workers") or workers.is_hosts_file(name)


@contextlib.contextmanager
def opened(
  name: str, stages: "Stages"
) -> "Iterator[tuple[Cluster, OpenCluster | None]]":
  """The cluster of a name, with its devices started where it has any.

  Args:
    name: of a preset, a file, or of devices that run.
    stages: shows that devices start.

  Raises:
    TfplaceError: a bad name or file, or devices that do not start.
  """
  if not is_live(name):
    yield find_cluster(name), None
    return
  from tfplace import measure

  if name.partition(":")[0] == "gpus":
    measure.leave_gpus()
  with contextlib.ExitStack() as stack:
    with stages("starting", f" {name}"):
      live = stack.enter_context(measure.open_cluster(name))
    yield live.cluster, live
