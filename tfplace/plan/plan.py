"""Plans as data: which op, layer and variable goes on which device, and why.

`Plan` is what a placed model follows; `AppliedPlacement` is what
`model.placement` shows of it, to print, edit and keep. Both know names only:
no model, and no TensorFlow graph.
"""

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping

from tfplace.core.order import ARRIVAL, order_to_json
from tfplace.core.placement import Placement
from tfplace.core.protocols import Evaluation, Result, check_count
from tfplace.errors import ApplyError
from tfplace.extraction import TracedStep
from tfplace.extraction.microbatches import SCOPE, WHOLE, SplitConfig, split_of
from tfplace.formats import json_file
from tfplace.formats.results import PLACEMENT
from tfplace.plan import local_devices, local_step
from tfplace.plan.choice import shown_us
from tfplace.plan.planner import against_single
from tfplace.simulate import control_edges

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
    split: how the training step is split.
    turns: op name -> when its turn comes, of the ops whose order devices are to
      keep; empty where they take ops as they become ready.
  """

  ops: Mapping[str, str]
  types: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  placement: Placement | None = None
  split: SplitConfig = WHOLE
  turns: Mapping[str, int] = dataclasses.field(default_factory=dict)

  def turn_of_op(self, name: str, op_type: str) -> int | None:
    """When the turn of this very op comes; None where it has none."""
    same = self.types.get(name, op_type) == op_type
    return self.turns.get(name) if same else None

  @property
  def devices(self) -> tuple[str, ...]:
    """The devices that the plan uses, sorted."""
    return tuple(sorted({*self.ops.values(), *self.layers.values()}))

  def device_of_op(self, name: str, op_type: str) -> str | None:
    """The device planned for this very op, or None.

    What is not split follows microbatch 0: a step that evaluates, say.
    """
    names = (name,) if self.split.is_whole else (name, f"{SCOPE}0/{name}")
    for known in names:
      if known in self.ops and self.types.get(known, op_type) == op_type:
        return self.ops[known]
    return None


def choices(name: str, layers: Iterable[str]) -> str:
  """The names nearest to an unknown one and some others, for a message."""
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
  """How a model is placed, or would be.

  `assignments` and `layers` are plain data: print them, edit a copy, keep it
  as JSON, and hand it to `place_model(model, placement=...)`, which then plans
  nothing. So does the whole object.

  Attributes:
    assignments: op name (or layer name, where the plan is of layers) -> full
      device name.
    layers: layer name -> the device where most of its time is spent: the plan
      in short, which is not all of it where a layer is divided.
    devices: the devices in use, sorted.
    strategy: the placer that proposed it, or "given".
    training: whether the training step was planned, or inference only.
    one_device: True where the model stays on one device, because nothing
      better was found or asked for; then it is as it was, unplaced.
    message: one sentence that says what was decided and why.
    model: name of the model.
    placement: what was planned, where it was planned here or given as such.
    evaluation: the simulated step of `placement`; its `ratio_to_bound` is how
      many times as fast, at the very most, another placement could be.
    single_device: the simulated step of the best single device.
    seconds: stage of planning -> seconds that it took.
    costs: "measured" (one step ran on this process's devices), "estimated", or
      "" where nothing was planned.
    step: what was planned, without weights, for `measure`.
    split: how the training step is split.
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
    """The parts into which the training step splits the batch; 1 for none."""
    return self.split.microbatches

  @property
  def max_in_flight(self) -> int | None:
    """Microbatches that may be under way at once; None for all."""
    return self.split.max_in_flight

  @property
  def order(self) -> str:
    """In which devices take their ready ops."""
    return ARRIVAL if self.placement is None else self.placement.problem.order

  def __str__(self) -> str:
    """The decision, and one line per layer."""
    width = max(map(len, self.layers), default=0)
    lines = [
      f"  {name:{width}}  {local_devices.short_name(device)}"
      for name, device in self.layers.items()
    ]
    return "\n".join([self.message, *lines])

  def measure(self, steps: int = 20) -> Evaluation:
    """Runs the planned step as placed, and times it; the model is not touched.

    It runs beside the model, on weights and inputs of its own: not in the
    middle of a `fit`, and with memory for both.

    Args:
      steps: timed steps, of which the median counts.

    Raises:
      TfplaceError: `steps` is no whole number of at least 1.
      ApplyError: this placement was not planned in this process, or is for
        devices that it lacks.
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
  """Describes a placement that the user gave for the model of that name.

  Args:
    plan: what was given.
    model: name of the model.
    is_partial: whether there is more in the model than the plan names.
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
  """Describes a cluster of one device: there is nothing to choose from."""
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
  """Describes a placement that was searched for.

  Args:
    result: the placement chosen.
    single: the best single device, if one has the memory; of the whole step,
      where it was chosen how to split it.
    used: full names of the devices that `result` uses.
    one_device: whether the model stays on one device.
    traced: the step that was planned.
    note: what is to be said of its split.
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
  """Layer -> the device of most of its time; in order of their first ops."""
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
  step = f"{kind} of {shown_us(result.evaluation.step_time_us)}"
  left = _left_to_gain(result.evaluation)
  shared = local_devices.shared_phrase(used)
  if single is None:
    return (
      f"placed on {where} by {result.strategy}: a predicted {step} by {costs}"
      f" costs; no single device has the memory{left}{shared}"
    )
  if one_device and result.evaluation is single.evaluation:
    alone = shown_us(single.evaluation.step_time_us)
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
  """What the proven bound leaves to be gained; empty where there is none."""
  ratio = evaluation.ratio_to_bound
  if ratio is None:
    return ""
  percent = 100 * (1 - 1 / ratio)
  proven = "; for these costs it is proven that no placement"
  if percent < _LEAST_PERCENT:
    return f"{proven} is faster"
  least = f"{shown_us(evaluation.lower_bound_us)} ({percent:.2g}% less)"
  return f"{proven} takes less than {least}"
