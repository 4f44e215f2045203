"""Plan of a model: what users print, edit, save and apply."""

import collections
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfplace.core.argument_checks import check_count
from tfplace.core.evaluation import Evaluation
from tfplace.core.microbatches import WHOLE, VariantConfig
from tfplace.core.order import ARRIVAL, RANK, order_to_json
from tfplace.core.placement import Placement
from tfplace.core.units import format_us
from tfplace.cost.uncertainty import interval_in_words
from tfplace.errors import ApplyError
from tfplace.formats import json_file
from tfplace.formats.results import PLACEMENT
from tfplace.placers.idle_devices import at_work
from tfplace.plan.search import PlanReport, against_single, is_same
from tfplace.report.rows import listed

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.plan.device_map import DeviceMap
  from tfplace.report import summary
  from tfplace.report.timeline import Timeline
  from tfplace.simulate import Schedule

GIVEN = "given"  # Strategy of a placement that the user gave.
_LEAST_PERCENT = 0.1  # Smaller headroom is reported as none.


@dataclasses.dataclass(frozen=True)
class Plan:
  """Plan of a model: the device of every op, and the reasons.

  `assignments` and `layers` are plain data. They can be printed, edited in a
  copy, saved as JSON and passed to `place_model(model, placement=...)`, which
  then skips planning. The whole plan can be passed, too.

  Attributes:
    model: name of the model.
    strategy: the placer that proposed the placement, or "given".
    training: whether the training step was planned rather than inference.
    one_device: whether the model stays unplaced on one device, because nothing
      better was found or requested.
    placement: the planned or given `Placement`, or None.
    evaluation: simulated step of `placement`. Its `ratio_to_bound` is an upper
      bound of the speedup of any other placement.
    single_device: fastest step on one device, whole or in microbatches. It is
      of a CPU only where no other device holds the step.
    microbatch_config: microbatches of the training step.
    costs: "measured" if a step ran on this process's devices, "estimated", or
      "" if nothing was planned.
    notes: sentences about the costs, the choices and their reasons.
    seconds: duration in seconds by stage of planning.
    device_map: devices that the placed model follows. None for a plan that was
      not applied, and for a model that stays on one device.
    report: all results of planning, or None if nothing was planned.
    step: planned step without weights, used by `measure`.
  """

  model: str
  strategy: str
  training: bool = True
  one_device: bool = False
  placement: Placement | None = None
  evaluation: Evaluation | None = None
  single_device: Evaluation | None = None
  microbatch_config: VariantConfig = WHOLE
  costs: str = ""
  notes: tuple[str, ...] = ()
  seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
  device_map: "DeviceMap | None" = None
  report: PlanReport | None = dataclasses.field(
    default=None, repr=False, compare=False
  )
  step: "TracedStep | None" = dataclasses.field(
    default=None, repr=False, compare=False
  )

  @functools.cached_property
  def assignments(self) -> Mapping[str, str]:
    """Full device name by op name, or by layer name for a plan of layers."""
    from tfplace.plan import local_devices  # This import loads TensorFlow.

    if self.device_map is not None:
      return {**self.device_map.ops, **self.device_map.layers}
    if self.placement is None:
      return {}
    return local_devices.full_names(self.placement.traced_assignments)

  @functools.cached_property
  def layers(self) -> Mapping[str, str]:
    """Device by layer name, where the layer spends most of its time.

    This summary is incomplete if a layer is divided among devices.
    """
    from tfplace.plan import local_devices

    if self.report is None:
      return {} if self.device_map is None else self.device_map.layers
    if self.placement is None or self.step is None:
      return {}
    found = _devices_of_layers(self.placement, self.step.layers)
    return local_devices.full_names(found)

  @functools.cached_property
  def devices(self) -> tuple[str, ...]:
    """Sorted full names of the devices in use."""
    from tfplace.plan import local_devices

    if self.report is not None and self.placement is not None:
      cluster = self.placement.problem.cluster
      used = np.unique(self.placement.devices)
      names = {cluster.devices[i].name: cluster.devices[i].name for i in used}
      return tuple(sorted(local_devices.full_names(names).values()))
    default = local_devices.default_device()
    if self.device_map is None:
      return (default,)
    rest = {default} if self.device_map.is_partial else set()
    return tuple(sorted({*self.device_map.devices, *rest}))

  @property
  def message(self) -> str:
    """Headline: step time, devices, speedup and remaining headroom."""
    if self.evaluation is not None:
      return self._headline(self.evaluation)
    if self.device_map is None:
      return f"stays on {_listed(self.devices)}, the only device"
    text = f"placed on {_listed(self.device_map.devices)} as given"
    if self.device_map.is_partial:
      from tfplace.plan import local_devices

      rest = _short(local_devices.default_device())
      text += f"; other ops are on {rest} or with their inputs"
    return text

  @functools.cached_property
  def device_rows(self) -> "tuple[summary.DeviceRow, ...]":
    """Work of each device; empty for a placement given by names."""
    if self._schedule is None:
      return ()
    from tfplace.report import summary

    return summary.device_rows(self._schedule)

  @functools.cached_property
  def _schedule(self) -> "Schedule | None":
    """Simulated step, or None for a placement given by names."""
    if self.placement is None:
      return None
    from tfplace.simulate import Simulator

    return Simulator(self.placement.problem).schedule(self.placement)

  @property
  def microbatches(self) -> int:
    """Number of microbatches of the training step; 1 for the whole step."""
    return self.microbatch_config.count

  @property
  def max_in_flight(self) -> int | None:
    """Maximum number of microbatches in flight; None means all."""
    return self.microbatch_config.max_in_flight

  @property
  def order(self) -> str:
    """Order in which a device runs its ready ops."""
    if self.placement is not None:
      return self.placement.problem.order
    turns = self.device_map is not None and self.device_map.turns
    return RANK if turns else ARRIVAL

  @property
  def _title(self) -> str:
    return f"{self.message[0].upper()}{self.message[1:]}"

  def __str__(self) -> str:
    """Returns the headline, a table of the devices, and the notes."""
    lines = [self._title]
    if self.device_rows:
      from tfplace.report import summary

      lines += ["", summary.table_text(self.device_rows), ""]
    else:
      width = max(map(len, self.layers), default=0)
      lines += [
        f"  {name:{width}}  {_short(device)}"
        for name, device in self.layers.items()
      ]
    return "\n".join([*lines, *(f"- {note}" for note in self._all_notes)])

  @property
  def _all_notes(self) -> list[str]:
    seconds = [seconds_phrase(self.seconds)] if self.seconds else []
    return [*self.notes, *seconds]

  def _repr_html_(self) -> str:
    from tfplace.report import summary

    return summary.plan_html(
      self._title,
      self.device_rows,
      {} if self.device_rows else self.layers,
      self._all_notes,
    )

  def plot(self, path: str | os.PathLike[str] | None = None) -> "Timeline":
    """Draws devices, transfers and memory of the simulated step over time.

    Args:
      path: .png, .svg or .pdf file to write, or None.

    Returns:
      The Matplotlib figure, which notebooks show.

    Raises:
      ApplyError: nothing was planned, such as for a placement given by names.
      FormatError: the suffix is not supported, or the file cannot be written.
    """
    from tfplace.report import timeline

    if self._schedule is None:
      raise ApplyError(
        f"model {self.model!r} was not planned with costs, so there is no step"
        " to draw: plot what plan_model returned"
      )
    if path is None:
      return timeline.draw_timeline(self._schedule)
    return timeline.save_timeline(self._schedule, path)

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
    """Writes the assignments as a `tfplace.placement.v1` file.

    By rank, the file also has the order of the ops, so that it can be applied.

    Raises:
      FormatError: the file cannot be written.
    """
    from tfplace.simulate import control_edges  # Compiles.

    name, op_order = self.model, {}
    if self.placement is not None:
      name = self.placement.problem.graph.name
      op_order = control_edges.op_order_to_json(self.placement)
    elif self.order == RANK and self.device_map is not None:
      turns = self.device_map.turns
      op_order = {"op_order": sorted(turns, key=turns.__getitem__)}
    data = {
      "format": PLACEMENT,
      "graph": name,
      **order_to_json(self.order),
      **op_order,
      "assignments": dict(self.assignments),
    }
    json_file.write_json(path, data)

  def _headline(self, evaluation: Evaluation) -> str:
    single = self.single_device
    kind = "training step" if self.training else "inference step"
    examples = 0 if self.step is None else self.step.batch_size
    if examples:
      kind += f" of {examples:,} example{'s' * (examples != 1)}"
    if self.microbatches > 1:
      kind += f" in {self.microbatch_config.words}"
    step = (
      f"{format_us(evaluation.step_time_us)}{interval_in_words(evaluation)}"
    )
    text = f"{step} per {kind}"
    left = _headroom(evaluation)
    if self.one_device and single is not None and is_same(evaluation, single):
      where = self._where()
      return f"{text} on {where}: no placement found is faster{left}"
    than = "" if self.one_device else ", and no single device has the memory"
    if single is not None:
      one = self._single_name(single)
      than = f", {against_single(evaluation, single, one)}"
    return f"{text} on {self._where()}{than}{left}"

  def _single_name(self, single: Evaluation) -> str:
    """Names the one device if it is a CPU beside accelerators."""
    if self.placement is None or not single.busy_us:
      return "one device"
    cluster = self.placement.problem.cluster
    name = max(single.busy_us, key=lambda device: single.busy_us[device])
    is_cpu = (
      name in cluster.index and cluster.devices[cluster.index[name]].is_cpu
    )
    if not is_cpu or all(device.is_cpu for device in cluster.devices):
      return "one device"
    return f"{_short(name)} alone"

  def _where(self) -> str:
    """Names the devices that work, or counts those of a kind."""
    if self.placement is None:
      return _listed(self.devices)
    cluster = self.placement.problem.cluster
    used = at_work(self.placement)
    if not len(used):
      used = np.unique(self.placement.devices)
    working: dict[tuple[str, str], list[str]] = {}
    there = collections.Counter[tuple[str, str]]()
    for i, device in enumerate(cluster.devices):
      key = (device.base_kind, cluster.kind_labels[i])
      there[key] += 1
      if i in used:
        working.setdefault(key, []).append(_short(device.name))
    named = []
    for (kind, label), names in working.items():
      count = f"{len(names)}"
      if len(names) < there[kind, label]:
        count += f" of {there[kind, label]}"
      what = f"{count} {label}{' ' * bool(label)}{kind}s"
      named.append(what if len(names) > 1 else names[0])
    return listed(named) or "no device"


def _devices_of_layers(
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


def _short(device: str) -> str:
  return device.rpartition("/device:")[2]


def _listed(devices: Iterable[str]) -> str:
  return ", ".join(map(_short, devices))


def _headroom(evaluation: Evaluation) -> str:
  """Describes the remaining headroom by the proven bound; "" for no bound."""
  ratio = evaluation.ratio_to_bound
  if ratio is None:
    return ""
  percent = 100 * (ratio - 1)
  if percent < _LEAST_PERCENT:
    return "; none can be faster at these costs"
  if percent < 100:
    return f"; at most {percent:.2g}% more is possible"
  return f"; the proven limit is {ratio:.2g} times as fast"


def seconds_phrase(seconds: Mapping[str, float]) -> str:
  """Lists the seconds of all stages of at least 0.1 s in one sentence."""
  whole = sum(seconds.values())
  parts = [f"{k} {v:.1f} s" for k, v in seconds.items() if v >= 0.1]
  return f"Planned in {whole:.1f} s ({', '.join(parts) or 'at once'})."
