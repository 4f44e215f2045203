"""Data parallelism in which some layers run whole, each on one device.

A layer whose weights are large for what it reads and writes sends less if one
device runs it for all microbatches: embeddings (Krizhevsky, arXiv 1404.5997),
and experts, each on another device (Lepikhin et al., arXiv 2006.16668).
"""

from collections.abc import Iterator

import numpy as np

from tfplace.graph.budget import Budget
from tfplace.graph.csr import csr, group_sums
from tfplace.placers.groups import GroupGraph
from tfplace.placers.one_shot import Batches
from tfplace.placers.rules.device_grid import DeviceGrid, microbatched_grids
from tfplace.simulate.links import mean_transfer


def layerwise(groups: GroupGraph, seed: int, budget: Budget) -> Batches:
  """Proposes 1, 2, 4, ... whole layers, first those that save most per work.

  Raises TfplaceError if the step is not microbatched.
  """
  grids = microbatched_grids("layerwise", groups)
  yield (
    row
    for grid in grids
    for start in grid.placements(grid.most_replicas, 1)
    for row in _with_whole_layers(grid, start)
  )


def _with_whole_layers(
  grid: DeviceGrid, start: np.ndarray
) -> Iterator[np.ndarray]:
  """Yields [num_groups] devices with more and more whole layers.

  Each layer goes where its transfers and the work of the device take least.
  """
  groups, layer, devices = grid.groups, grid.layer_of_groups, start.copy()
  count, num_devices = int(layer.max(initial=0)) + 1, groups.num_devices
  here, there, cut_us = _cuts(groups)
  sent_us = np.where(devices[here] != devices[there], cut_us, 0.0)
  is_inner = layer[here] == layer[there]
  sent_us[is_inner] /= 2  # Such a cut is there twice.
  saved_us = np.bincount(layer[here], sent_us, count)
  cuts = csr(layer[here[~is_inner]], count)
  there, cut_us = there[~is_inner][cuts[1]], cut_us[~is_inner][cuts[1]]

  def kept_us(one: int) -> np.ndarray:
    """Returns [num_devices] microseconds of a layer's cuts to each device."""
    of = slice(*cuts[0][one : one + 2])
    return np.bincount(devices[there[of]], cut_us[of], num_devices)

  for one in range(count):
    kept = kept_us(one)
    saved_us[one] -= kept.sum() - kept[grid.devices].max()
  work_us = group_sums(layer, groups.possible_us, count)
  own_us = groups.possible_us[np.arange(groups.num_groups), devices]
  load_us = np.bincount(devices, own_us, num_devices)
  order = np.argsort(-saved_us / (work_us.min(axis=1) + 1e-9), kind="stable")
  order = order[saved_us[order] > 0]
  offsets, members = csr(layer, count)
  for number, one in enumerate(order.tolist(), 1):
    mine = members[slice(*offsets[one : one + 2])]
    load_us -= np.bincount(devices[mine], own_us[mine], num_devices)
    end_us = load_us + work_us[one] - kept_us(one)
    devices[mine] = grid.devices[end_us[grid.devices].argmin()]
    load_us[devices[mine[0]]] += work_us[one, devices[mine[0]]]
    if number & (number - 1) == 0 or number == len(order):
      yield groups.nearest(devices)


def _cuts(groups: GroupGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns both ends of each edge, both ways, and its transfer time in us."""
  src, dst, size = groups.edges
  us_per_byte, fixed_us = mean_transfer(groups.problem.cluster, with_gap=True)
  cut_us = np.tile(size * us_per_byte + fixed_us, 2)
  return np.append(src, dst), np.append(dst, src), cut_us
