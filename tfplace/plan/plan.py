"""Plans as plain data: devices of ops and layers, and their reasons.

A placed model follows a `Plan`. `model.placement` is an `AppliedPlacement`,
which users print, edit and save. Both hold names only, no model and no
TensorFlow graph.
"""

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping

from tfplace.core.argument_checks import check_count
from tfplace.core.evaluation import Evaluation, Result
from tfplace.core.order import ARRIVAL, order_to_json
from tfplace.core.placement import Placement
from tfplace.core.units import format_us
from tfplace.errors import ApplyError
from tfplace.extraction import TracedStep
from tfplace.extraction.microbatches import SCOPE, WHOLE, SplitConfig, split_of
from tfplace.formats import json_file
from tfplace.formats.results import PLACEMENT
from tfplace.plan import local_devices, local_step
from tfplace.plan.planner import against_single
from tfplace.simulate import control_edges

_LISTED = 12  # of a model's layers; a message is to be read


@dataclasses.dataclass(frozen=True)
class Plan:
  """Devices of ops and layers by name.

  Attributes:
    ops: full device name by op name.
    types: op type by op name. An op of the same name and another type is not
      the planned one. Empty if the types are unknown.
    layers: full device name by layer name.
    placement: the `Placement` that the plan was made from, or None.
    split: microbatches of the training step.
    turns: turn by op name, for ops with a fixed order. Empty for order
      "arrival".
  """

  ops: Mapping[str, str]
  types: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  placement: Placement | None = None
  split: SplitConfig = WHOLE
  turns: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def turn_of_op(self, name: str, op_type: str) -> int | None:
    """Returns the turn of an op, or None if it has none."""
    same = self.types.get(name, op_type) == op_type
    return self.turns.get(name) if same else None

  @property
  def devices(self) -> tuple[str, ...]:
    """Sorted full names of the devices that the plan uses."""
    return tuple(sorted({*self.ops.values(), *self.layers.values()}))

  def device_of_op(self, name: str, op_type: str) -> str | None:
    """Returns the planned device of an op, or None.

    Ops of a whole step, such as evaluation, follow microbatch 0.
    """
    names = (name,) if self.split.is_whole else (name, f"{SCOPE}0/{name}")
    for known in names:
      if known in self.ops and self.types.get(known, op_type) == op_type:
        return self.ops[known]
    return None


def choices(name: str, layers: Iterable[str]) -> str:
  """Lists the names most similar to an unknown name, for a message."""
  known = sorted(layers)
  near = difflib.get_close_matches(name, known, n=3)
  meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
  others = f" and {len(known) - _LISTED} others" if known[_LISTED:] else ""
  return f"{meant}its layers are {', '.join(known[:_LISTED])}{others}"


def from_placement(placement: Placement) -> Plan:
  """Converts a `Placement` to a plan with the types of its ops.

  Raises:
    ApplyError: this process lacks a device.
  """
  graph = placement.problem.graph
  types = dict(zip(graph.names, graph.types, strict=True))
  ops = local_devices.canonical_devices(placement.assignments)
  return Plan(
    ops,
    types,
    placement=placement,
    split=split_of(ops),
    turns=_turns(placement),
  )


def _turns(placement: Placement) -> dict[str, int]:
  if placement.problem.order == ARRIVAL:
    return {}
  names = placement.problem.graph.names
  in_turn = control_edges.simulated_order(placement)
  return {names[op]: turn for turn, op in enumerate(in_turn)}


WITHOUT_JIT = "jit_compile is off, since XLA would put all on one device"
_LEAST_PERCENT = 0.1  # of the step; nobody would call less a gap


@dataclasses.dataclass(frozen=True)
class AppliedPlacement:
  """Description of an applied or planned placement of a model.

  `assignments` and `layers` are plain data. They can be printed, edited in a
  copy, saved as JSON and passed to `place_model(model, placement=...)`, which
  then skips planning. The whole object can be passed, too.

  Attributes:
    assignments: full device name by op name, or by layer name for a plan of
      layers.
    layers: device by layer name, where the layer spends most of its time. This
      summary is incomplete if a layer is divided among devices.
    devices: sorted names of the devices in use.
    strategy: the placer that proposed the placement, or "given".
    training: whether the training step was planned rather than inference.
    one_device: whether the model stays unplaced on one device, because nothing
      better was found or requested.
    message: one sentence with the decision and its reason.
    model: name of the model.
    placement: the planned or given `Placement`, or None.
    evaluation: simulated step of `placement`. Its `ratio_to_bound` is an upper
      bound of the speedup of any other placement.
    single_device: simulated step on the best single device.
    seconds: duration in seconds by stage of planning.
    costs: "measured" if a step ran on this process's devices, "estimated", or
      "" if nothing was planned.
    step: planned step without weights, used by `measure`.
    split: microbatches of the training step.
  """

  assignments: Mapping[str, str]
  layers: Mapping[str, str]
  devices: tuple[str, ...]
  strategy: str
  training: bool = True
  one_device: bool = False
  message: str = ""
  model: str = ""
  placement: Placement | None = None
  evaluation: Evaluation | None = None
  single_device: Evaluation | None = None
  seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
  costs: str = ""
  step: TracedStep | None = dataclasses.field(
    default=None, repr=False, compare=False
  )
  split: SplitConfig = WHOLE

  @property
  def microbatches(self) -> int:
    """Number of microbatches of the training step; 1 for the whole step."""
    return self.split.microbatches

  @property
  def max_in_flight(self) -> int | None:
    """Maximum number of microbatches in flight; None means all."""
    return self.split.max_in_flight

  @property
  def order(self) -> str:
    """Order in which a device runs its ready ops."""
    return ARRIVAL if self.placement is None else self.placement.problem.order

  def __str__(self) -> str:
    """Returns the decision and one line per layer."""
    width = max(map(len, self.layers), default=0)
    lines = [
      f"  {name:{width}}  {local_devices.short_name(device)}"
      for name, device in self.layers.items()
    ]
    return "\n".join([self.message, *lines])

  def measure(self, steps: int = 20) -> Evaluation:
    """Runs and times the placed step without changing the model.

    The step runs beside the model, with its own weights and inputs. It requires
    memory for both and must not be measured during `fit`.

    Args:
      steps: number of timed steps; the median is used.

    Raises:
      TfplaceError: `steps` is not a whole number of at least 1.
      ApplyError: the placement was not planned in this process, or this
        process lacks its devices.
      MeasurementError: the step cannot be run beside the model.
    """
    steps = check_count("steps", steps, 1)
    if self.step is None or self.placement is None:
      raise ApplyError(
        f"model {self.model!r}: only what place_model or plan_model planned in"
        " this process can be measured"
      )
    local_devices.check_cluster(self.placement.problem.cluster)
    return local_step.measure(self.step, self.placement, steps)

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes the assignments as a `tfplace.placement.v1` file.

    Raises:
      FormatError: the file cannot be written.
    """
    name = self.model
    if self.placement is not None:
      name = self.placement.problem.graph.name
    data = {
      "format": PLACEMENT,
      "graph": name,
      **order_to_json(self.order),
      "assignments": dict(self.assignments),
    }
    json_file.write_json(path, data)


def given(plan: Plan, model: str, is_partial: bool) -> AppliedPlacement:
  """Describes a placement that the user gave.

  Args:
    plan: the given plan.
    model: name of the model.
    is_partial: whether the plan leaves parts of the model unplaced.
  """
  assignments = {**plan.ops, **plan.layers}
  default = local_devices.default_device()
  message = f"placed on {_listed(plan.devices)} as given"
  if is_partial:
    rest = local_devices.short_name(default)
    message += f"; what it does not name is on {rest}, or with what it works on"
  used = {*plan.devices, default} if is_partial else set(plan.devices)
  return AppliedPlacement(
    assignments=assignments,
    layers=plan.layers,
    devices=tuple(sorted(used)),
    strategy="given",
    message=message,
    model=model,
    placement=plan.placement,
    split=plan.split,
  )


def without_jit(applied: AppliedPlacement) -> AppliedPlacement:
  """Adds to the message that the model's `jit_compile=True` has no effect."""
  message = f"{applied.message}; {WITHOUT_JIT}"
  return dataclasses.replace(applied, message=message)


def _listed(devices: Iterable[str]) -> str:
  return ", ".join(local_devices.short_name(name) for name in devices)


def only_device(
  device: str, model: str, training: bool, split: SplitConfig = WHOLE
) -> AppliedPlacement:
  """Describes the trivial placement on a cluster of one device."""
  return AppliedPlacement(
    assignments={},
    layers={},
    devices=(device,),
    strategy="single",
    training=training,
    one_device=True,
    message=f"stays on {local_devices.short_name(device)}, the only device",
    model=model,
    split=split,
  )


def planned(
  result: Result,
  single: Result | None,
  used: tuple[str, ...],
  one_device: bool,
  traced: TracedStep,
  note: str = "",
) -> AppliedPlacement:
  """Describes a placement that a search found.

  Args:
    result: chosen placement.
    single: result on the best single device, or None if no device has enough
      memory. It is of the whole step if microbatches were chosen.
    used: full names of the devices that `result` uses.
    one_device: whether the model stays on one device.
    traced: the planned step.
    note: additional text for the message.
  """
  message = _message(result, single, used, one_device, traced.training)
  assignments = result.placement.assignments
  return AppliedPlacement(
    assignments=local_devices.full_names(assignments),
    layers=local_devices.full_names(_layers(result.placement, traced)),
    devices=used,
    strategy=result.strategy,
    training=traced.training,
    one_device=one_device,
    message=f"{message}; {note}" if note else message,
    costs=_costs(result),
    step=local_step.without_values(traced),
    split=split_of(result.placement.problem.graph.names),
    model=traced.name,
    placement=result.placement,
    evaluation=result.evaluation,
    single_device=None if single is None else single.evaluation,
  )


def _layers(placement: Placement, traced: TracedStep) -> dict[str, str]:
  """Returns the main device of each layer, in order of their first ops."""
  problem = placement.problem
  votes: dict[str, dict[str, float]] = {}
  for op, name in enumerate(problem.graph.names):
    if name in traced.layers:
      device = placement.devices[op]
      where = problem.cluster.devices[device].name
      spent = votes.setdefault(traced.layers[name][0], {})
      time_us = float(problem.time_us[op, device])
      spent[where] = spent.get(where, 0.0) + time_us
  return {
    name: max(spent, key=spent.__getitem__) for name, spent in votes.items()
  }


def _costs(result: Result) -> str:
  graph = result.placement.problem.graph
  return "measured" if graph.extra.get("costs") == "measured" else "estimated"


def _message(
  result: Result,
  single: Result | None,
  used: tuple[str, ...],
  one_device: bool,
  training: bool,
) -> str:
  where, costs = _listed(used), _costs(result)
  kind = "step" if training else "inference step"
  count = split_of(result.placement.problem.graph.names).microbatches
  if count > 1:
    kind += f" in {count} microbatches"
  step = f"{kind} of {format_us(result.evaluation.step_time_us)}"
  left = _left_to_gain(result.evaluation)
  shared = local_devices.shared_phrase(used)
  if single is None:
    return (
      f"placed on {where} by {result.strategy}: a predicted {step} by {costs}"
      f" costs; no single device has the memory{left}{shared}"
    )
  if one_device and result.evaluation is single.evaluation:
    alone = format_us(single.evaluation.step_time_us)
    left = _left_to_gain(single.evaluation)
    return (
      f"stays on one device, {where}: a predicted {kind} of {alone} by {costs}"
      f" costs, which no placement found beats{left}"
    )
  return (
    f"placed on {where} by {result.strategy}: a predicted {step} by {costs}"
    f" costs, {against_single(result, single)}{left}{shared}"
  )


def _left_to_gain(evaluation: Evaluation) -> str:
  """Describes the remaining headroom by the proven bound; "" for no bound."""
  ratio = evaluation.ratio_to_bound
  if ratio is None:
    return ""
  percent = 100 * (1 - 1 / ratio)
  proven = "; for these costs it is proven that no placement"
  if percent < _LEAST_PERCENT:
    return f"{proven} is faster"
  least = f"{format_us(evaluation.lower_bound_us)} ({percent:.2g}% less)"
  return f"{proven} takes less than {least}"
