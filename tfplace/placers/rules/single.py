"""Baseline placers: one device for everything, or contiguous blocks."""

from collections.abc import Sequence

import numpy as np

from tfplace.errors import ProblemError
from tfplace.graph.budget import Budget
from tfplace.graph.cluster import MESSAGE_COSTS, Cluster
from tfplace.placers.groups import GroupGraph, equal_blocks
from tfplace.placers.one_shot import Batches


def single(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Places everything on the fastest single device that holds it.

  Beside other devices, a CPU counts only if none of them holds the step.
  """
  cpus = _cpus(groups)
  yield _on_each(groups, np.setdiff1d(range(groups.num_devices), cpus))
  if groups.problem.off_cpu is None:
    yield _on_each(groups, cpus)


def cpu(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Places everything on the fastest CPU device that holds it.

  Raises ProblemError if the cluster has none.
  """
  cpus = _cpus(groups)
  if not cpus:
    raise ProblemError(
      f"strategy 'cpu': cluster {groups.problem.cluster.name!r} has no device"
      " of kind 'CPU'"
    )
  yield _on_each(groups, cpus)


def _cpus(groups: GroupGraph) -> list[int]:
  devices = groups.problem.cluster.devices
  return [i for i, device in enumerate(devices) if device.is_cpu]


def _on_each(
  groups: GroupGraph, devices: Sequence[int] | np.ndarray
) -> list[np.ndarray]:
  """Returns all groups on each device, once if devices are alike.

  A group that a device cannot run is on its fastest one.
  """
  rows: dict[bytes, np.ndarray] = {}
  for device in devices:
    row = groups.nearest(np.full(groups.num_groups, device))
    alike = _alike(groups.problem.cluster, device, groups.expand(row))
    rows.setdefault(alike, row)
  return list(rows.values())


def _alike(cluster: Cluster, device: int, row: np.ndarray) -> bytes:
  """Returns a key that is equal for placements that differ only in `device`.

  `row` is the [num_ops] placement with everything possible on `device`.
  """
  is_here = row == device
  used = np.append(device, np.unique(row[~is_here]))
  at = np.ix_(used, used)
  about = cluster.devices[device]
  parts = [np.array([about.memory_bytes, about.op_overhead_us])]
  for field in ("bandwidth", "latency_us", "gap_us", *MESSAGE_COSTS):
    parts.append(getattr(cluster, field)[at])
  channel = cluster.channel[at].ravel()
  parts += [channel[:, None] == channel, np.where(is_here, -1, row)]
  return about.kind.encode() + b"".join(part.tobytes() for part in parts)


def blocks(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Places contiguous blocks balanced by time, with their variables.

  The topological order of groups is cut into one block per device.
  """
  cut = equal_blocks(groups, groups.order)
  yield [groups.beside_readers(cut)]
