"""A plan: which op, layer and variable goes on which device.

It knows names only, no graph and no model state; `read_plan` makes one.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping

from tfplace.apply import devices as devices_lib
from tfplace.graph.placement import Placement

_LISTED = 12  # of a model's layers; a message is to be read


@dataclasses.dataclass(frozen=True)
class Plan:
  """Where things go, by name.

  Attributes:
    ops: op name -> full device name.
    types: op name -> op type; an op of the same name and another type is not
      the planned one. Empty where the types are unknown.
    layers: layer name -> full device name.
    placement: what it was made from, if that was a `Placement`.
  """

  ops: Mapping[str, str]
  types: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  placement: Placement | None = None

  @property
  def devices(self) -> tuple[str, ...]:
    """The devices that the plan uses, sorted."""
    return tuple(sorted({*self.ops.values(), *self.layers.values()}))

  def device_of_op(self, name: str, op_type: str) -> str | None:
    """The device planned for this very op, or None."""
    if self.types.get(name, op_type) != op_type:
      return None
    return self.ops.get(name)


def choices(name: str, layers: Iterable[str]) -> str:
  """What somebody who wrote `name` may have meant, for a message."""
  known = sorted(layers)
  near = difflib.get_close_matches(name, known, n=3)
  meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
  others = f" and {len(known) - _LISTED} others" if known[_LISTED:] else ""
  return f"{meant}its layers are {', '.join(known[:_LISTED])}{others}"


def from_placement(placement: Placement) -> Plan:
  """The plan that a `Placement` is, with the types of its ops.

  Raises:
    ApplyError: a device that this process lacks.
  """
  graph = placement.problem.graph
  types = dict(zip(graph.names, graph.types, strict=True))
  ops = devices_lib.canonical_devices(placement.assignments)
  return Plan(ops, types, placement=placement)
