"""Plan of a model: what users print, edit, save and apply."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tfplace.errors import ApplyError
from tfplace.formats import codec, json_file, results
from tfplace.graph.argument_checks import AUTO, Text, check_count
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.microbatches import (
  SCOPE,
  WHOLE,
  VariantConfig,
  microbatches_of,
)
from tfplace.graph.op_graph import UNIT_SUFFIX, XLA
from tfplace.graph.order import ARRIVAL, order_to_json
from tfplace.graph.placement import Placement
from tfplace.graph.recompute import NONE
from tfplace.plan.config import check_compile
from tfplace.plan.search import Outcome

if TYPE_CHECKING:
  from tfplace.report.summary import DeviceRow
  from tfplace.report.timeline import Timeline
  from tfplace.simulate import Schedule

GIVEN = "given"  # Strategy of a placement that the user gave.
_FILE = ("model", "ops", "order", "op_order")  # Beside "plan" in a file.
_IN_PROCESS = ("placement", "outcome", "step")  # Not in a file.


@dataclasses.dataclass(frozen=True)
class Plan:
  """Plan of a model: the device of every op, and the reasons.

  A plan is plain data. It can be printed, saved as JSON, loaded and passed to
  `place_model(model, placement=...)`. So can an edited copy of `assignments` or
  `layers`.

  Attributes:
    model: name of the model.
    strategy: the placer that proposed the placement, or "given".
    ops: device name by op of the traced step.
    layers: device name by layer. Of planned ops, this is the device where the
      layer spends most of its time, which is incomplete if a layer is divided
      among devices.
    is_of_layers: whether `layers` place the ops that `ops` does not name.
    types: op type by op name. An op of the same name and another type is not
      the planned one. Empty if the types are unknown.
    units: unit by op name, as planned; without it, units follow from names.
    order: order in which a device runs its ready ops.
    op_order: names of the ops in that order; empty for order "arrival".
    variant: microbatches and recomputation of the training step.
    compile: "xla" compiles units, "none" does not, and "auto" does where Keras
      would compile the unplaced step.
    training: whether the training step was planned rather than inference.
    batch_size: examples per step, or 0 if unknown.
    one_device: whether nothing better than one device was found or requested.
    is_partial: whether parts of the model have no device.
    evaluation: evaluated step. Its `ratio_to_bound` is an upper bound of the
      speedup of any other placement.
    single_device: fastest step on one device, whole or in microbatches. It is
      of a CPU only where no other device holds the step.
    costs: "measured" if a step ran on this process's devices, "estimated", or
      "" if nothing was planned.
    notes: sentences about the costs, the choices and their reasons.
    seconds: duration in seconds by stage of planning.
    versions: version by package that made the plan.
    placement: placement of the op graph, or None for a plan from a file.
    outcome: all results of planning, or None for a plan that was given.
    step: planned step without weights, used by `measure`, or None.
  """

  model: Text
  strategy: str
  ops: Mapping[str, str] = dataclasses.field(default_factory=dict)
  layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
  is_of_layers: bool = False
  types: Mapping[str, str] = dataclasses.field(default_factory=dict)
  units: Mapping[str, str] = dataclasses.field(default_factory=dict)
  order: str = ARRIVAL
  op_order: tuple[str, ...] = ()
  variant: VariantConfig = WHOLE
  compile: str = NONE
  training: bool = True
  batch_size: int = 0
  one_device: bool = False
  is_partial: bool = False
  evaluation: Evaluation | None = None
  single_device: Evaluation | None = None
  costs: Text = ""
  notes: tuple[str, ...] = ()
  seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
  versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
  placement: Placement | None = dataclasses.field(
    default=None, repr=False, compare=False
  )
  outcome: Outcome | None = dataclasses.field(
    default=None, repr=False, compare=False
  )
  step: Any = dataclasses.field(default=None, repr=False, compare=False)

  @property
  def assignments(self) -> Mapping[str, str]:
    """Device name by op name, or by layer name for a plan of layers."""
    return {**self.ops, **self.layer_devices}

  @property
  def layer_devices(self) -> Mapping[str, str]:
    """Device name by layer for a plan of layers; empty for one of ops."""
    return self.layers if self.is_of_layers else {}

  @property
  def unit_devices(self) -> Mapping[str, str]:
    """Device name by unit; units follow their ops."""
    return {u: self.ops[op] for op, u in self.units.items() if op in self.ops}

  @functools.cached_property
  def devices(self) -> tuple[str, ...]:
    """Sorted names of the devices in use."""
    used = set(self.assignments.values())
    if self.is_partial or not used:
      from tfplace.plan import local_devices  # This import loads TensorFlow.

      used.add(local_devices.default_device())
    return tuple(sorted(used))

  @functools.cached_property
  def turns(self) -> Mapping[str, int]:
    """Turn by op name, for ops with a fixed order; ops of a unit share one."""
    first: dict[str, int] = {}
    return {
      op: first.setdefault(self.units.get(op, op), turn)
      for turn, op in enumerate(self.op_order)
    }

  def device_of_op(self, name: str, op_type: str) -> str | None:
    """Returns the device of an op, or None.

    Ops of a whole step, such as evaluation, follow microbatch 0.
    """
    for known in self._names(name):
      if known in self.ops and self._is_of_type(known, op_type):
        return self.ops[known]
    return None

  def unit_of_op(self, name: str) -> str | None:
    """Returns the unit of an op, or None."""
    units = (self.units.get(known) for known in self._names(name))
    return next(filter(None, units), None)

  def turn_of_op(self, name: str, op_type: str) -> int | None:
    """Returns the turn of an op, or None if it has none."""
    return self.turns.get(name) if self._is_of_type(name, op_type) else None

  def _names(self, name: str) -> list[str]:
    whole = self.variant.is_whole
    return [name] if whole else [name, f"{SCOPE}0/{name}"]

  def _is_of_type(self, name: str, op_type: str) -> bool:
    return self.types.get(name, op_type) == op_type

  @property
  def message(self) -> str:
    """Headline: step time, devices, speedup and remaining headroom."""
    return str(printer().headline(self))

  @functools.cached_property
  def device_rows(self) -> "tuple[DeviceRow, ...]":
    """Work of each device; empty if the placement is not known here."""
    if self.schedule is None:
      return ()
    return tuple(printer().device_rows(self.schedule))

  @functools.cached_property
  def schedule(self) -> "Schedule | None":
    """Simulated step, or None if the placement is not known here."""
    if self.placement is None:
      return None
    from tfplace.simulate import Simulator

    return Simulator(self.placement.problem).schedule(self.placement)

  def __str__(self) -> str:
    """Returns the headline, a table of the devices, and the notes."""
    return str(printer().text(self))

  def _repr_pretty_(self, notebook: Any, unused_cycle: bool) -> None:
    notebook.text(str(self))

  def plot(self, path: str | os.PathLike[str] | None = None) -> "Timeline":
    """Draws devices, transfers and memory of the simulated step over time.

    Args:
      path: .png, .svg or .pdf file to write, or None.

    Returns:
      The Matplotlib figure, which notebooks show.

    Raises:
      ApplyError: nothing was planned in this process.
      FormatError: the suffix is not supported, or the file cannot be written.
    """
    if self.schedule is None:
      raise ApplyError(
        f"model {self.model!r} was not planned with costs, so there is no step"
        " to draw: plot what plan_model returned"
      )
    return printer().plot(self.schedule, path)

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
    from tfplace.plan import local_devices, local_step

    steps = check_count("steps", steps, 1)
    if self.step is None or self.placement is None:
      raise ApplyError(
        f"model {self.model!r}: only what place_model or plan_model planned in"
        " this process can be measured"
      )
    local_devices.check_cluster(self.placement.problem.cluster)
    return local_step.measure(self.step, self.placement, steps)

  def save(self, path: str | os.PathLike[str]) -> None:
    """Writes a `tfplace.placement.v1` file that `load` reads.

    Raises:
      FormatError: the file cannot be written.
    """
    plain = dataclasses.replace(self, placement=None, outcome=None, step=None)
    content = codec.to_json(plain, sparse=True)
    order = {"op_order": list(self.op_order)} if self.op_order else {}
    json_file.write_json(
      path,
      {
        "format": results.PLACEMENT,
        "graph": self.model,
        **order_to_json(self.order),
        **order,
        "assignments": {**self.unit_devices, **self.assignments},
        "plan": {k: v for k, v in content.items() if k not in _FILE},
      },
    )

  @classmethod
  def load(cls, path: str | os.PathLike[str]) -> "Plan":
    """Reads a plan, or the placement of another `tfplace.placement.v1` file.

    Raises:
      FormatError: the file is invalid; names the file, element and value.
    """
    data = json_file.read_json(path, results.PLACEMENT)
    with json_file.errors_naming(path):
      return cls.from_json(data)

  @classmethod
  def from_json(cls, data: Mapping[str, Any]) -> "Plan":
    """Converts a parsed file; a FormatError names the element and value."""
    ops = _without_units(results.read_assignments(data))
    unplanned = {"strategy": GIVEN, "compile": AUTO}
    known = json_file.as_object(data.get("plan", unplanned), "plan")
    fields = {
      **{k: v for k, v in known.items() if k not in (*_IN_PROCESS, *_FILE)},
      "model": data.get("graph", ""),
    }
    plan = codec.from_json(cls, fields, "plan")
    check_compile(plan.compile)
    by_layer = plan.layer_devices
    return dataclasses.replace(
      plan,
      ops={name: ops[name] for name in ops if name not in by_layer},
      order=results.read_order(data),
      op_order=tuple(results.read_op_order(data)),
      variant=microbatches_of(ops) if known is unplanned else plan.variant,
    )

  @classmethod
  def from_placement(cls, placement: Placement) -> "Plan":
    """Returns the plan of a given placement."""
    graph = placement.problem.graph
    plan = cls(graph.name, GIVEN, variant=microbatches_of(graph.traced_names))
    return plan.with_placement(placement)

  def with_placement(self, placement: Placement, **changes: Any) -> "Plan":
    """Returns the plan with another placement, and with further changes."""
    from tfplace.simulate import control_edges  # Compiles.

    graph = placement.problem.graph
    is_free = placement.problem.order == ARRIVAL
    layers = {} if self.step is None else self.step.layers
    return dataclasses.replace(
      self,
      ops=placement.traced_assignments,
      layers=_main_devices(placement, layers),
      types=dict(zip(graph.names, graph.types, strict=True)),
      units={op: unit for unit, ops in graph.members.items() for op in ops},
      order=placement.problem.order,
      op_order=() if is_free else tuple(control_edges.turns(placement)),
      compile=XLA if graph.members else NONE,
      placement=placement,
      **changes,
    )


def _without_units(ops: Mapping[str, str]) -> dict[str, str]:
  """Leaves out units, which a file names beside their ops."""
  return {
    name: device
    for name, device in ops.items()
    if not name.endswith(UNIT_SUFFIX)
    or name.removesuffix(UNIT_SUFFIX) not in ops
  }


def _main_devices(
  placement: Placement, layers: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
  """Returns the main device of each layer, in order of their first ops."""
  problem = placement.problem
  votes: dict[str, dict[str, float]] = {}
  members = problem.graph.members
  for op, unit in enumerate(problem.graph.names):
    name = members.get(unit, (unit,))[0]
    if name in layers:
      device = placement.devices[op]
      where = problem.cluster.devices[device].name
      spent = votes.setdefault(layers[name][0], {})
      time_us = float(problem.time_us[op, device])
      spent[where] = spent.get(where, 0.0) + time_us
  return {
    name: max(spent, key=spent.__getitem__) for name, spent in votes.items()
  }


def printer() -> ModuleType:
  """Returns the module that describes plans, which itself imports plans."""
  from tfplace.report import plans

  return plans
