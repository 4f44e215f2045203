"""What `model.placement` tells: the plan in force, to read back."""

import dataclasses
from collections.abc import Mapping

from tfplace.apply import devices as devices_lib
from tfplace.apply.plan import Plan
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.placement import Placement


@dataclasses.dataclass(frozen=True)
class AppliedPlacement:
  """How a model is placed.

  Attributes:
    assignments: op name (or layer name, where the plan is of layers) -> full
      device name.
    devices: the devices in use, sorted.
    strategy: the placer that proposed it, or "given".
    training: whether the training step was planned, or inference only.
    one_device: True where the model stays on one device, because nothing
      better was found or asked for; then it is as it was, unplaced.
    message: one sentence that says what was decided and why.
    placement: what was planned, where it was planned here or given as such.
    evaluation: the simulated step of `placement`.
    single_device: the simulated step of the best single device.
  """

  assignments: Mapping[str, str]
  devices: tuple[str, ...]
  strategy: str
  training: bool = True
  one_device: bool = False
  message: str = ""
  placement: Placement | None = None
  evaluation: Evaluation | None = None
  single_device: Evaluation | None = None


def given(plan: Plan) -> AppliedPlacement:
  """Tells of a placement that the caller brought."""
  assignments = {**plan.ops, **plan.layers}
  where = ", ".join(devices_lib.short_name(name) for name in plan.devices)
  return AppliedPlacement(
    assignments=assignments,
    devices=plan.devices,
    strategy="given",
    message=f"placed on {where} as given",
    placement=plan.placement,
  )


def only_device(device: str) -> AppliedPlacement:
  """Tells that there is nothing to choose from."""
  return AppliedPlacement(
    assignments={},
    devices=(device,),
    strategy="single",
    one_device=True,
    message=f"stays on {devices_lib.short_name(device)}, the only device",
  )
