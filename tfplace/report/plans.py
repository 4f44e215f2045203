"""Plans in words: headline and text."""

import collections
import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tfplace.cost.uncertainty import interval_in_words
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.quantities import format_us
from tfplace.plan.plan import Plan
from tfplace.report import summary
from tfplace.report.rows import listed
from tfplace.report.summary import device_rows, held_back
from tfplace.simulate import Schedule

if TYPE_CHECKING:
  from tfplace.report.timeline import Timeline

__all__ = ["device_rows", "headline", "held_back", "plot", "text"]
_SAME = 1.005  # Step times with a smaller ratio are reported as equal.
_LEAST_PERCENT = 0.1  # Smaller headroom is reported as none.


def headline(plan: Plan) -> str:
  """Says step time, devices, speedup and remaining headroom."""
  if plan.evaluation is not None:
    return _of_evaluation(plan, plan.evaluation)
  if not plan.assignments:
    return f"stays on {_short_names(plan.devices)}, the only device"
  named = sorted(set(plan.assignments.values()))
  placed = f"placed on {_short_names(named)} as given"
  if not plan.is_partial:
    return placed
  from tfplace.plan import local_devices  # This import loads TensorFlow.

  rest = _short(local_devices.default_device())
  return f"{placed}; other ops are on {rest} or with their inputs"


def text(plan: Plan) -> str:
  """Returns the headline, a table of the devices, and the notes."""
  lines, notes = [f"{plan.message[0].upper()}{plan.message[1:]}"], plan.notes
  if plan.seconds:
    notes = *notes, seconds_phrase(plan.seconds)
  if plan.device_rows:
    lines += ["", summary.table_text(plan.device_rows), ""]
  else:
    width = max(map(len, plan.layers), default=0)
    lines += [
      f"  {name:{width}}  {_short(device)}"
      for name, device in plan.layers.items()
    ]
  return "\n".join([*lines, *(f"- {note}" for note in notes)])


def plot(schedule: Schedule, path: str | os.PathLike[str] | None) -> "Timeline":
  """Draws a step, and writes the picture if a path is given."""
  from tfplace.report import timeline  # Needs the extra `report`.

  if path is None:
    return timeline.draw_timeline(schedule)
  return timeline.save_timeline(schedule, path)


def seconds_phrase(seconds: Mapping[str, float]) -> str:
  """Lists the seconds of all stages of at least 0.1 s in one sentence."""
  whole = sum(seconds.values())
  parts = [f"{k} {v:.1f} s" for k, v in seconds.items() if v >= 0.1]
  return f"Planned in {whole:.1f} s ({', '.join(parts) or 'at once'})."


def _of_evaluation(plan: Plan, evaluation: Evaluation) -> str:
  single, examples = plan.single_device, plan.batch_size
  kind = "training step" if plan.training else "inference step"
  if examples:
    kind += f" of {examples:,} example{'s' * (examples != 1)}"
  if not plan.variant.is_whole:
    kind += f" in {plan.variant.words}"
  step = f"{format_us(evaluation.step_time_us)}{interval_in_words(evaluation)}"
  time = f"{step} per {kind}"
  where, left = _where(plan), _headroom(evaluation)
  if plan.one_device and single is not None and _is_same(evaluation, single):
    return f"{time} on {where}: no placement found is faster{left}"
  than = "" if plan.one_device else ", and no single device has the memory"
  if single is not None:
    one = _single_name(plan, single)
    than = f", {_against_single(evaluation, single, one)}"
  return f"{time} on {where}{than}{left}"


def _is_same(planned: Evaluation, single: Evaluation) -> bool:
  """Returns whether two step times are reported as equal."""
  times = sorted((planned.step_time_us, single.step_time_us))
  return times[1] < _SAME * times[0] or times[0] == times[1]


def _against_single(planned: Evaluation, single: Evaluation, one: str) -> str:
  """Compares the step with that of one device, such as "2.3x one device"."""
  alone_us = single.step_time_us
  ratio = planned.step_time_us / alone_us if alone_us else 1.0
  if ratio < 1:
    return f"{1 / ratio if ratio else math.inf:.3g}x {one}"
  alone = f"{one} ({format_us(alone_us)})"
  if ratio < _SAME:
    return f"no faster than {alone}"
  digits = f"{ratio:.3g}" if ratio < 100 else f"{ratio:,.0f}"
  return f"{digits} times as long as on {alone}"


def _single_name(plan: Plan, single: Evaluation) -> str:
  """Names the one device if it is a CPU beside accelerators."""
  if plan.placement is None or not single.busy_us:
    return "one device"
  cluster = plan.placement.problem.cluster
  name = max(single.busy_us, key=lambda device: single.busy_us[device])
  is_cpu = name in cluster.index and cluster.devices[cluster.index[name]].is_cpu
  if not is_cpu or cluster.is_cpu.all():
    return "one device"
  return f"{_short(name)} alone"


def _where(plan: Plan) -> str:
  """Names the devices that work, or counts those of a kind."""
  if plan.placement is None or plan.schedule is None:
    return _short_names(plan.devices)
  cluster = plan.placement.problem.cluster
  used = np.flatnonzero(plan.schedule.busy_us > 0)
  if not len(used):
    used = np.unique(plan.placement.devices)
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


def _short(device: str) -> str:
  return device.rpartition("/device:")[2]


def _short_names(devices: Iterable[str]) -> str:
  return ", ".join(map(_short, devices))
