"""Devices of the ops and layers of a model in this process, by name."""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping

from tfplace.core.microbatches import (
  SCOPE,
  WHOLE,
  VariantConfig,
  microbatches_of,
)
from tfplace.core.op_graph import XLA
from tfplace.core.order import ARRIVAL
from tfplace.core.placement import Placement
from tfplace.core.recompute import NONE
from tfplace.plan import local_devices
from tfplace.simulate import control_edges

_LISTED = 12  # Number of layers in a message.


@dataclasses.dataclass(frozen=True)
class DeviceMap:
  """Devices of ops and layers by name, which a placed model follows.

  Attributes:
    ops: full device name by op name.
    types: op type by op name. An op of the same name and another type is not
      the planned one. Empty if the types are unknown.
    layers: full device name by layer name.
    microbatches: microbatches of the training step.
    turns: turn by op name, for ops with a fixed order. Empty for order
      "arrival".
    compile: "xla" compiles units, "none" does not, and "auto" does where Keras
      would compile the unplaced step.
    units: unit by op name, as planned; without it, units follow from names.
    is_partial: whether parts of the model have no device.
  """

  ops: Mapping[str, str]
  types: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  microbatches: VariantConfig = WHOLE
  turns: Mapping[str, int] = dataclasses.field(default_factory=dict)
  compile: str = NONE
  units: Mapping[str, str] = dataclasses.field(default_factory=dict)
  is_partial: bool = False

  def turn_of_op(self, name: str, op_type: str) -> int | None:
    """Returns the turn of an op, or None if it has none."""
    same = self.types.get(name, op_type) == op_type
    return self.turns.get(name) if same else None

  @property
  def devices(self) -> tuple[str, ...]:
    """Sorted full names of the devices that the map names."""
    return tuple(sorted({*self.ops.values(), *self.layers.values()}))

  def device_of_op(self, name: str, op_type: str) -> str | None:
    """Returns the device of an op, or None.

    Ops of a whole step, such as evaluation, follow microbatch 0.
    """
    for known in self._names(name):
      if known in self.ops and self.types.get(known, op_type) == op_type:
        return self.ops[known]
    return None

  def unit_of_op(self, name: str) -> str | None:
    """Returns the unit of an op, or None."""
    found = (self.units.get(known) for known in self._names(name))
    return next(filter(None, found), None)

  def _names(self, name: str) -> list[str]:
    whole = self.microbatches.is_whole
    return [name] if whole else [name, f"{SCOPE}0/{name}"]


def from_placement(placement: Placement) -> DeviceMap:
  """Converts a `Placement` to a device map with the types of its ops.

  Raises:
    ApplyError: this process lacks a device.
  """
  graph = placement.problem.graph
  ops = local_devices.canonical_devices(placement.traced_assignments)
  is_free = placement.problem.order == ARRIVAL
  turns = {} if is_free else control_edges.turns(placement)
  types = dict(zip(graph.names, graph.types, strict=True))
  units = {
    op: unit for unit, members in graph.members.items() for op in members
  }
  return DeviceMap(
    ops,
    types,
    microbatches=microbatches_of(ops),
    turns=turns,
    compile=XLA if units else NONE,
    units=units,
  )


def similar_names(name: str, layers: Iterable[str]) -> str:
  """Lists the layers most similar to an unknown name, for a message."""
  known = sorted(layers)
  near = difflib.get_close_matches(name, known, n=3)
  meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
  others = f" and {len(known) - _LISTED} others" if known[_LISTED:] else ""
  return f"{meant}its layers are {', '.join(known[:_LISTED])}{others}"
