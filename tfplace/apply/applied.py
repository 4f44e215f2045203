"""What `model.placement` tells: the plan in force, to read back."""

import dataclasses
from collections.abc import Mapping

from tfplace.apply import devices as devices_lib
from tfplace.apply.plan import Plan
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.placement import Placement
from tfplace.placers.base import Result


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


def planned(
  result: Result,
  single: Result | None,
  used: tuple[str, ...],
  one_device: bool,
  training: bool,
) -> AppliedPlacement:
  """Tells of a placement that was searched for.

  Args:
    result: the placement chosen.
    single: the best single device, if one has the memory.
    used: full names of the devices that `result` uses.
    one_device: whether the model stays on one device.
    training: whether the training step was planned.
  """
  assignments = result.placement.assignments
  return AppliedPlacement(
    assignments=devices_lib.canonical_devices(assignments),
    devices=used,
    strategy=result.strategy,
    training=training,
    one_device=one_device,
    message=_message(result, single, used, one_device),
    placement=result.placement,
    evaluation=result.evaluation,
    single_device=None if single is None else single.evaluation,
  )


def is_beaten(result: Result, single: Result | None) -> bool:
  """Whether one device alone is predicted to be as fast as `result`."""
  return single is not None and (
    result.evaluation.step_time_us >= single.evaluation.step_time_us
  )


def _message(
  result: Result,
  single: Result | None,
  used: tuple[str, ...],
  one_device: bool,
) -> str:
  where = ", ".join(devices_lib.short_name(name) for name in used)
  step = _shown(result.evaluation.step_time_us)
  if single is None:
    return (
      f"placed on {where} by {result.strategy}: a predicted step of {step};"
      " no single device has the memory"
    )
  alone = _shown(single.evaluation.step_time_us)
  if one_device:
    return (
      f"stays on one device, {where}: a predicted step of {alone}, which no"
      " placement found beats"
    )
  beaten = is_beaten(result, single)
  against = "no better than" if beaten else "against"
  return (
    f"placed on {where} by {result.strategy}: a predicted step of {step},"
    f" {against} {alone} on one device"
  )


def _shown(time_us: float) -> str:
  if time_us < 1e6:
    return f"{time_us / 1e3:.3g} ms"
  return f"{time_us / 1e6:.3g} s"
