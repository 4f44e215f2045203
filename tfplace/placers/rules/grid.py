"""Data parallelism, pipelines and hybrids of microbatched steps.

Devices are a grid of replicas by stages; the best variant of it is kept.
"""

from collections.abc import Sequence

from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_all_repaired
from tfplace.placers.rules.device_grid import DeviceGrid, device_grids
from tfplace.placers.tracker import Tracker


def data_parallel(tracker: Tracker, groups: GroupGraph, seed: int) -> None:
  """Places each microbatch on its own device, as far as devices suffice.

  Raises TfplaceError if the step is not microbatched.
  """
  steps = _of_microbatches(tracker, groups)
  _offer(tracker, groups, [(s, (s.most_replicas, 1)) for s in steps])


def pipeline(tracker: Tracker, groups: GroupGraph, seed: int) -> None:
  """Places each stage of consecutive layers on its own device."""
  steps = device_grids(groups)
  _offer(tracker, groups, [(s, (1, len(s.devices))) for s in steps])


def hybrid(tracker: Tracker, groups: GroupGraph, seed: int) -> None:
  """Places replicas of a pipeline in the best grid of two or more of each.

  Raises TfplaceError without microbatches or with fewer than four devices.
  """
  steps = _of_microbatches(tracker, groups)
  grids = [(step, grid) for step in steps for grid in step.grids()]
  if not grids:
    raise TfplaceError(
      f"strategy {tracker.name!r} needs four devices for two replicas of two"
      f" stages; cluster {groups.problem.cluster.name!r} has"
      f" {len(steps[-1].devices)}"
    )
  _offer(tracker, groups, grids)


def _of_microbatches(tracker: Tracker, groups: GroupGraph) -> list[DeviceGrid]:
  graph = groups.problem.graph
  if graph.num_microbatches < 2:
    raise TfplaceError(
      f"strategy {tracker.name!r} places a step that is split into"
      f" microbatches, which that of graph {graph.name!r} is not"
    )
  return device_grids(groups)


def _offer(
  tracker: Tracker,
  groups: GroupGraph,
  grids: Sequence[tuple[DeviceGrid, tuple[int, int]]],
) -> None:
  rows = (row for step, grid in grids for row in step.placements(*grid))
  offer_all_repaired(tracker, groups, rows)
