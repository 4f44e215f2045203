"""Gives two nearly independent halves of a graph devices of their own.

Towers, and microbatches that share nothing but variables, are problems of half
the size on half the devices: searched one by one, they end where a search of
the whole does not get (two Inception-V3 side by side on four V100s took 1.13
times one on two of them). A half may fall into halves again. (Ours; the halves
are METIS' or, of a split step, of its microbatches.)
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from tfplace.core.cluster import Cluster
from tfplace.core.op_graph import subgraph
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Result
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph, main_devices
from tfplace.placers.partition import metis
from tfplace.placers.rules.grid import SplitStep
from tfplace.placers.tracker import Tracker
from tfplace.simulate.links import mean_transfer

SHARE = 0.7  # of the seconds left, for both halves
_TRAFFIC = 0.5  # between halves, at most, as a share of the work of one
_LONGEST = 0.6  # path, at most, as a share of all work
_TOGETHER = 1.2  # times half of one device's step: on two devices, at most
_TOTAL = 2**28  # of METIS' weights

_COSTS = (
  *("output_offsets", "output_bytes", "persistent_bytes", "temp_bytes"),
  *("edge_src", "edge_output", "edge_dst"),
)
# Places a problem of a half within a budget.
Place = Callable[[Problem, Budget], Result]


def search_halves(
  tracker: Tracker, groups: GroupGraph, seed: int, place: Place
) -> np.ndarray | None:
  """[num_groups] devices where each half was searched by itself.

  Args:
    tracker: evaluates what tells whether the halves run at once.
    groups: of the problem.
    seed: of METIS.
    place: searches a half.

  Returns:
    None where the devices do not fall into two halves of one kind, the graph
    does not, or a half does not fit on its devices.
  """
  devices = main_devices(groups)
  if len(devices) < 4 or len(devices) % 2:
    return None
  half = next(_independent(tracker, groups, devices, seed), None)
  if half is None:
    return None
  parts = [
    _part(groups, half == side, devices.reshape(2, -1)[side]) for side in (0, 1)
  ]
  twins = _are_twins(parts[0][0], parts[1][0])
  budget = _share(tracker, 1 if twins else 2)
  found, own = np.full(groups.num_groups, -1), None
  for side, (problem, numbers) in enumerate(parts):
    if own is None or not twins:
      try:
        result = place(problem, Budget(*budget))
      except TfplaceError:
        return None
      tracker.evaluations += result.evaluations
      own = GroupGraph(problem).contract(result.placement.devices)
    found[half == side] = numbers[own]
  return groups.nearest(found)


def _share(tracker: Tracker, searches: int) -> tuple[float, int | None]:
  """Seconds and evaluations that each search may spend."""
  seconds = SHARE / searches * tracker.budget.left_s
  most = tracker.budget.max_evaluations
  if most is not None:
    left = max(0, most - tracker.evaluations)
    most = max(1, int(SHARE / searches * left))
  return seconds, most


def _are_twins(one: Problem, other: Problem) -> bool:
  """Whether a placement of one is one of the other, and as good."""
  same = all(
    np.array_equal(getattr(one.graph, name), getattr(other.graph, name))
    for name in _COSTS
  )
  same = same and np.array_equal(one.group_of, other.group_of)
  same = same and np.array_equal(one.time_us, other.time_us, equal_nan=True)
  return same and _links(one.cluster) == _links(other.cluster)


def _links(cluster: Cluster) -> list[object]:
  """Devices and links, whatever their names."""
  rank = {device.name: i for i, device in enumerate(cluster.devices)}
  memory = [device.memory_bytes for device in cluster.devices]
  ends = [(rank[link.src], rank[link.dst]) for link in cluster.links]
  links = [
    dataclasses.replace(link, src="", dst="", channel=None)
    for link in cluster.links
  ]
  return [memory, ends, links]


def _independent(
  tracker: Tracker, groups: GroupGraph, devices: np.ndarray, seed: int
) -> Iterator[np.ndarray]:
  """[num_groups] 0 or 1, of each way to halve the graph that serves."""
  if not _may_run_at_once(groups):
    return
  alone_us = None
  for half in _ways(groups, devices, seed):
    if not _are_apart(groups, half):
      continue
    if alone_us is None:
      one = groups.nearest(np.full(groups.num_groups, devices[0]))
      alone_us = tracker.offer(groups.expand(one)).step_time_us
    row = groups.nearest(devices[[0, -1]][half])
    step_us = tracker.offer(groups.expand(row)).step_time_us
    if step_us <= _TOGETHER * alone_us / 2:
      yield half


def _ways(
  groups: GroupGraph, devices: np.ndarray, seed: int
) -> Iterator[np.ndarray]:
  if 2 <= groups.problem.graph.num_microbatches < len(devices):
    yield SplitStep(groups).replicas(2)
  try:
    graph = metis.weighted_graph(groups, devices, _TOTAL)
    yield metis.cut(graph, 2, seed)
  except TfplaceError:  # it is not installed
    return


def _may_run_at_once(groups: GroupGraph) -> bool:
  problem = groups.problem
  ends_us = problem.earliest_start_us + problem.fastest_us
  return bool(ends_us.max(initial=0.0) <= _LONGEST * problem.fastest_us.sum())


def _are_apart(groups: GroupGraph, half: np.ndarray) -> bool:
  """Whether little passes between the halves, and neither is small."""
  work = np.bincount(half, groups.fastest_us, 2)
  src, dst, size = groups.edges
  across = half[src] != half[dst]
  us_per_byte, _ = mean_transfer(groups.problem.cluster)
  passed_us = us_per_byte * size[across].sum()
  return bool(
    work.min() >= work.sum() / 4 and passed_us <= _TRAFFIC * work.sum() / 2
  )


def _part(
  groups: GroupGraph, mine: np.ndarray, devices: np.ndarray
) -> tuple[Problem, np.ndarray]:
  """The problem of some groups on some of the main devices and all others.

  Returns:
    The problem, whose groups are in the order of the whole one's; and its
    devices' numbers in the whole one.
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
