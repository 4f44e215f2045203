"""Placements: a device for each op, checked against a problem."""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfplace.errors import PlacementError, shown
from tfplace.graph.problem import Problem


@dataclasses.dataclass(frozen=True, eq=False)
class Placement:
  """A device index for each op of a problem's graph.

  Attributes:
    problem: graph and cluster of the placement.
    devices: [num_ops] int32 index into `problem.cluster.devices`.
    extra: unknown keys of the file.
  """

  problem: Problem = dataclasses.field(repr=False)
  devices: np.ndarray
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    devices = np.array(device_indices(self.devices))  # A copy.
    devices.setflags(write=False)
    object.__setattr__(self, "devices", devices)
    check_devices(self.problem, devices)

  @property
  def assignments(self) -> dict[str, str]:
    """Op name -> device name, as plain data."""
    names = [device.name for device in self.problem.cluster.devices]
    graph = self.problem.graph
    return {
      op: names[d] for op, d in zip(graph.names, self.devices, strict=True)
    }

  @property
  def traced_assignments(self) -> dict[str, str]:
    """Device name by op of the traced step: units are their members."""
    members = self.problem.graph.members
    return {
      one: device
      for op, device in self.assignments.items()
      for one in members.get(op, (op,))
    }

  @classmethod
  def from_assignments(
    cls,
    problem: Problem,
    assignments: Mapping[str, str],
    extra: Mapping[str, Any] | None = None,
  ) -> "Placement":
    """Builds a placement from op name -> device name.

    Raises:
      PlacementError: an op is missing or unknown, a device is unknown, or the
        placement is not allowed.
    """
    assignments = _of_units(problem, assignments)
    devices = np.zeros(problem.graph.num_ops, np.int32)
    for op, name in enumerate(problem.graph.names):
      if name not in assignments:
        raise PlacementError(f"op {name!r} has no assignment", op=name)
      device = problem.cluster.index.get(assignments[name])
      if device is None:
        raise PlacementError(
          f"op {name!r} is assigned to unknown device"
          f" {shown(assignments[name])}",
          op=name,
          device=assignments[name],
        )
      devices[op] = device
    if len(assignments) > problem.graph.num_ops:
      known = problem.graph.index
      name = next(name for name in assignments if name not in known)
      raise PlacementError(
        f"unknown op {shown(name)} is assigned to {shown(assignments[name])}",
        op=name,
      )
    return cls(problem, devices, extra or {})

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes `tfplace.placement.v1` atomically."""
    from tfplace.formats import results  # It reads this class.

    results.save_placement(self, path)


def _of_units(
  problem: Problem, assignments: Mapping[str, str]
) -> Mapping[str, str]:
  """Returns assignments of units in place of those of their members.

  Raises:
    PlacementError: members of a unit are on different devices.
  """
  result = dict(assignments)
  for unit, members in problem.graph.members.items():
    for name in members:
      device = result.pop(name, None)
      if device is not None and result.setdefault(unit, device) != device:
        raise PlacementError(
          f"op {name!r} is on {device} and unit {unit!r}, which it is compiled"
          f" in, on {result[unit]}",
          op=name,
          device=device,
        )
  return result


def device_indices(devices: Any) -> np.ndarray:
  """Converts device indices to int32.

  Raises:
    PlacementError: they are no integers, or one needs more than 32 bits.
  """
  try:
    given = np.asarray(devices)
  except ValueError as error:  # Rows of different lengths.
    raise PlacementError(f"devices are no array: {error}") from error
  if given.dtype == np.int32 or not given.size:
    return given.astype(np.int32, copy=False)
  if given.dtype.kind not in "iu":
    raise PlacementError(
      f"devices are of type {given.dtype}; a placement takes integers, the"
      " index of a device for each op"
    )
  limits = np.iinfo(np.int32)
  for value in (given.min(), given.max()):
    if not limits.min <= int(value) <= limits.max:
      raise PlacementError(f"there is no device with index {value}")
  return given.astype(np.int32)


def check_devices(problem: Problem, devices: np.ndarray) -> None:
  """Checks one [num_ops] row of device indices.

  Raises:
    PlacementError: the shape or a device index is wrong, a device kind cannot
      run its op, colocated ops are separated, or a transfer lacks a link.
  """
  graph, cluster = problem.graph, problem.cluster
  if devices.shape != (graph.num_ops,):
    raise PlacementError(
      f"a placement of shape {devices.shape} for {graph.num_ops} ops"
    )
  bad = (devices < 0) | (devices >= cluster.num_devices)
  if bad.any():
    op = int(bad.argmax())
    raise PlacementError(
      f"op {graph.names[op]!r} is assigned to device index {devices[op]} of"
      f" {cluster.num_devices}",
      op=graph.names[op],
    )
  _check_kinds(problem, devices)
  _check_colocation(problem, devices)
  check_links(problem, devices)


def _check_kinds(problem: Problem, devices: np.ndarray) -> None:
  bad = ~problem.allowed[np.arange(len(devices)), devices]
  if bad.any():
    op = int(bad.argmax())
    name = problem.graph.names[op]
    device = problem.cluster.devices[devices[op]]
    raise PlacementError(
      f"op {name!r} ({problem.graph.types[op]}) cannot run on {device.name},"
      f" whose kind is {device.kind!r}",
      op=name,
      device=device.name,
    )


def _check_colocation(problem: Problem, devices: np.ndarray) -> None:
  offsets, ops = problem.group_ops
  first = ops[offsets[:-1]][problem.group_of]
  bad = devices != devices[first]
  if bad.any():
    op = int(bad.argmax())
    names, cluster = problem.graph.names, problem.cluster
    group = problem.group_name(op)
    raise PlacementError(
      f"op {names[op]!r} is on {cluster.devices[devices[op]].name} but"
      f" {names[first[op]]!r} of its colocation group {group!r} is on"
      f" {cluster.devices[devices[first[op]]].name}",
      op=names[op],
      device=cluster.devices[devices[op]].name,
    )


def check_links(problem: Problem, devices: np.ndarray) -> None:
  """Raises PlacementError if a transfer of [num_ops] devices lacks a link."""
  graph, cluster = problem.graph, problem.cluster
  if cluster.is_fully_linked:
    return
  src, dst = devices[graph.edge_src], devices[graph.edge_dst]
  bad = (src != dst) & (cluster.channel[src, dst] < 0)
  if bad.any():
    edge = int(bad.argmax())
    op = graph.names[graph.edge_src[edge]]
    names = [cluster.devices[d[edge]].name for d in (src, dst)]
    raise PlacementError(
      f"op {op!r} on {names[0]} feeds {graph.names[graph.edge_dst[edge]]!r} on"
      f" {names[1]}, and there is no link from the one to the other",
      op=op,
      device=names[0],
    )
