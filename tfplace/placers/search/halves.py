"""Separate search of two nearly independent halves of a graph.

Towers and microbatches are two problems of half the size; solving each finds
better placements. METIS or the microbatches define the halves. Specific to
tfplace.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.cluster import Cluster
from tfplace.core.evaluation import Result
from tfplace.core.op_graph import subgraph
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.partition import metis
from tfplace.placers.rules.device_grid import DeviceGrid
from tfplace.placers.search.config import HalvesConfig
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer

_COSTS = (
  *("output_offsets", "output_bytes", "persistent_bytes", "temp_bytes"),
  *("edge_src", "edge_output", "edge_dst"),
)
# Places the problem of a half within a budget.
Place = Callable[[Problem, Budget], Result]


def search_halves(
  tracker: Tracker,
  groups: GroupGraph,
  seed: int,
  place: Place,
  config: HalvesConfig,
) -> np.ndarray | None:
  """Searches two halves separately and joins their placements.

  Args:
    tracker: Evaluates whether the halves run in parallel.

  Returns:
    [num_groups] devices. None if the devices do not form two equal halves, the
    graph has no independent halves, or a half does not fit.
  """
  devices = main_devices(groups)
  if len(devices) < 4 or len(devices) % 2:
    return None
  half = next(_independent(tracker, groups, devices, seed, config), None)
  if half is None:
    return None
  parts = [
    _part(groups, half == side, devices.reshape(2, -1)[side]) for side in (0, 1)
  ]
  twins = _are_twins(parts[0][0], parts[1][0])
  budget = tracker.left.fraction(config.share if twins else config.share / 2)
  found, own = np.full(groups.num_groups, -1), None
  for side, (problem, numbers) in enumerate(parts):
    if own is None or not twins:
      try:
        result = place(problem, budget.fraction(1.0))
      except TfplaceError:
        return None
      tracker.evaluations += result.evaluations
      own = GroupGraph(problem).contract(result.placement.devices)
    found[half == side] = numbers[own]
  return groups.nearest(found)


def _are_twins(one: Problem, other: Problem) -> bool:
  """Returns True if placements of one half suit the other equally."""
  same = all(
    np.array_equal(getattr(one.graph, name), getattr(other.graph, name))
    for name in _COSTS
  )
  same = same and np.array_equal(one.group_of, other.group_of)
  same = same and np.array_equal(one.time_us, other.time_us, equal_nan=True)
  return same and _links(one.cluster) == _links(other.cluster)


def _links(cluster: Cluster) -> list[object]:
  """Returns devices and links without their names, for comparison."""
  rank = {device.name: i for i, device in enumerate(cluster.devices)}
  memory = [device.memory_bytes for device in cluster.devices]
  ends = [(rank[link.src], rank[link.dst]) for link in cluster.links]
  links = [
    dataclasses.replace(link, src="", dst="", channel=None)
    for link in cluster.links
  ]
  return [memory, ends, links]


def _independent(
  tracker: Tracker,
  groups: GroupGraph,
  devices: np.ndarray,
  seed: int,
  config: HalvesConfig,
) -> Iterator[np.ndarray]:
  """Yields [num_groups] 0 or 1 for each suitable division."""
  if not _may_run_at_once(groups, config.longest_path):
    return
  alone_us = None
  for half, traffic in _ways(groups, devices, seed, config):
    if not _are_apart(groups, half, traffic):
      continue
    if alone_us is None:
      one = groups.nearest(np.full(groups.num_groups, devices[0]))
      alone_us = tracker.offer(groups.expand(one)).step_time_us
    row = groups.nearest(devices[[0, -1]][half])
    step_us = tracker.offer(groups.expand(row)).step_time_us
    if step_us <= config.together * alone_us / 2:
      yield half


def _ways(
  groups: GroupGraph, devices: np.ndarray, seed: int, config: HalvesConfig
) -> Iterator[tuple[np.ndarray, float]]:
  """Yields divisions into halves, each with its maximum relative traffic."""
  if 2 <= groups.problem.graph.num_microbatches < len(devices):
    yield DeviceGrid(groups).replicas(2), config.traffic
  try:
    graph = metis.weighted_graph(groups, devices)
    yield metis.cut(graph, 2, seed), config.cut_traffic
  except TfplaceError:  # METIS is not installed.
    return


def _may_run_at_once(groups: GroupGraph, longest_path: float) -> bool:
  problem = groups.problem
  ends_us = problem.earliest_start_us + problem.fastest_us
  return bool(
    ends_us.max(initial=0.0) <= longest_path * problem.fastest_us.sum()
  )


def _are_apart(groups: GroupGraph, half: np.ndarray, traffic: float) -> bool:
  work = np.bincount(half, groups.fastest_us, 2)
  src, dst, size = groups.edges
  across = half[src] != half[dst]
  us_per_byte, _ = mean_transfer(groups.problem.cluster)
  passed_us = us_per_byte * size[across].sum()
  return bool(
    work.min() >= work.sum() / 4 and passed_us <= traffic * work.sum() / 2
  )


def _part(
  groups: GroupGraph, mine: np.ndarray, devices: np.ndarray
) -> tuple[Problem, np.ndarray]:
  """Returns the problem of some groups and the indices of its devices.

  Groups keep their order. The cluster has the given main devices and all
  others.
  """
  problem = groups.problem
  others = np.setdiff1d(
    np.arange(groups.num_devices), main_devices(groups), assume_unique=True
  )
  kept = np.sort(np.concatenate((devices, others)))
  ops = np.flatnonzero(mine[problem.group_of])
  graph = subgraph(problem.graph, ops)
  cluster = _only(problem.cluster, kept)
  return Problem(graph, cluster, order=problem.order), kept


def _only(cluster: Cluster, kept: np.ndarray) -> Cluster:
  devices = tuple(cluster.devices[i] for i in kept.tolist())
  names = {device.name for device in devices}
  links = tuple(
    link for link in cluster.links if link.src in names and link.dst in names
  )
  return dataclasses.replace(cluster, devices=devices, links=links)
