"""A plan: which op, layer and variable goes on which device.

Made from a `Placement`, a placement file or a plain mapping; checked against
this process's devices. It knows names only, no graph and no model state.
"""

import dataclasses
import os
from collections.abc import Mapping

import keras

from tfplace.apply import devices as devices_lib
from tfplace.apply import keras_state
from tfplace.errors import ApplyError
from tfplace.graph import json_file, placement_format
from tfplace.graph.placement import Placement


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


def make_plan(
  placement: Placement | Mapping[str, str] | str | os.PathLike[str],
  model: keras.Model,
) -> Plan:
  """A plan from whatever names devices.

  Args:
    placement: a `Placement`; the path of a placement file; or a mapping from
      op names, or from names of layers, to device names ("CPU:1" will do).
    model: whose layers a mapping may name.

  Raises:
    FormatError: the file is no placement file.
    ApplyError: a device that this process lacks, a layer that the model lacks,
      or nothing at all is placed.
  """
  if isinstance(placement, Placement):
    return from_placement(placement)
  if isinstance(placement, (str, os.PathLike)):
    placement = _read_assignments(placement)
  if not isinstance(placement, Mapping) or not placement:
    raise ApplyError(
      "a placement is a Placement, the path of a placement file, or a mapping"
      f" of op or layer names to device names, not {placement!r:.60}"
    )
  return _from_mapping(placement, model)


def from_placement(placement: Placement) -> Plan:
  """The plan that a `Placement` is, with the types of its ops.

  Raises:
    ApplyError: a device that this process lacks.
  """
  graph = placement.problem.graph
  types = dict(zip(graph.names, graph.types, strict=True))
  ops = devices_lib.canonical_devices(placement.assignments)
  return Plan(ops, types, placement=placement)


def _from_mapping(placement: Mapping[str, str], model: keras.Model) -> Plan:
  full = devices_lib.canonical_devices(placement)
  known = keras_state.layer_names(model)
  layers = {name: d for name, d in full.items() if name in known}
  ops = {name: d for name, d in full.items() if name not in known}
  # A plan of ops always has scoped names; without any, it is one of layers.
  if layers and not any("/" in name for name in ops):
    for name in ops:
      raise ApplyError(
        f"the placement names {name!r}, which is no layer of model"
        f" {model.name!r}; its layers are {', '.join(sorted(known))}",
        op=name,
        device=full[name],
      )
  return Plan(ops, {}, layers)


def _read_assignments(path: str | os.PathLike[str]) -> dict[str, str]:
  data = json_file.read_json(path, placement_format.FORMAT)
  with json_file.errors_naming(path):
    assignments = json_file.required(data, "assignments", "placement")
    return json_file.as_object(assignments, "assignments")
