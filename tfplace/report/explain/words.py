"""An explanation in sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from tfplace.report.explain.explanation import MIN_GAIN, Explanation
from tfplace.report.explain.moves import OpReport
from tfplace.report.explain.what_if import ONE_MORE
from tfplace.report.units import device_names, format_bytes, format_us

_SHOWN = 3
_SAME = 1e-9  # of the step: a change below it is none
_NOTICED = 1.005  # a ratio of step times from which they differ


def summary(explanation: Explanation) -> list[str]:
  """What matters about a placement, a sentence each."""
  return [
    *_step(explanation),
    *_path(explanation),
    *_bottleneck(explanation),
    *_layers(explanation),
    *_what_if(explanation),
    *_memory(explanation),
  ]


def op_summary(op: OpReport, step_time_us: float) -> list[str]:
  """Why an op is where it is, a sentence each."""
  where = "on the critical path" if op.is_critical else "off the critical path"
  sentences = [
    f"{op.name} ({op.type}) runs on {op.device} from {format_us(op.start_us)}"
    f" to {format_us(op.end_us)}, {where}."
  ]
  if op.colocation:
    count = len(op.colocation)
    shown = ", ".join(op.colocation[:_SHOWN])
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    sentences.append(f"It must stay with {shown}{more}, which move with it.")
  if op.received_bytes or op.sent_bytes:
    sentences.append(
      f"It receives {format_bytes(op.received_bytes)} from other devices and"
      f" sends {format_bytes(op.sent_bytes)} to them."
    )
  sentences.append(_verdict(op, step_time_us))
  return sentences


def _verdict(op: OpReport, step_time_us: float) -> str:
  possible = [
    (move.change_us, move.device)
    for move in op.moves
    if move.change_us is not None and move.fits
  ]
  if not op.moves:
    return "There is no other device."
  if not possible:
    return f"It is on {op.device} because no other device is possible."
  change_us, device = min(possible)
  if change_us < -_SAME * step_time_us:
    return (
      f"Alone, it would do better on {device}: the step would be"
      f" {format_us(-change_us)} ({_percent(-change_us / step_time_us)})"
      " shorter."
    )
  if change_us <= _SAME * step_time_us:
    return f"The step would be the same with it on {device}."
  return (
    f"It is on {op.device} because the step would be {format_us(change_us)}"
    f" longer with it on {device}, and no other device is better."
  )


def _percent(share: float) -> str:
  percent = 100 * share
  if 0 < percent < 0.1:
    return "under 0.1%"
  return f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"


def _step(explanation: Explanation) -> Iterator[str]:
  schedule = explanation.schedule
  problem = schedule.placement.problem
  graph, cluster = problem.graph, problem.cluster
  step_us = schedule.step_time_us
  text = (
    f"A step of {graph.name} ({graph.num_ops:,} ops) on {cluster.name} takes"
    f" {format_us(step_us)}, simulated"
  )
  ratio = explanation.ratio_to_bound
  if ratio is None:
    yield f"{text}."
    return
  gain = 1 - 1 / ratio
  bound = format_us(problem.lower_bound_us)
  if gain < 0.001:
    yield f"{text}; no placement is faster, by the lower bound of {bound}."
  else:
    yield (
      f"{text}: {ratio:.2f} times the lower bound of {bound}, so no placement"
      f" can shorten it by more than {_percent(gain)}."
    )


def _path(explanation: Explanation) -> Iterator[str]:
  path, step_us = explanation.path, explanation.schedule.step_time_us
  if not path.parts or step_us <= 0:
    return
  shares = (
    (path.compute_us, "computing"),
    (path.transfer_us, "sending tensors"),
    (path.idle_us, "launch gaps and latency"),
  )
  parts = [f"{_percent(us / step_us)} {what}" for us, what in shares if us > 0]
  if parts:
    yield f"The critical path is {_listed(parts)}."
  if path.queue_us > 0:
    yield (
      f"For {_percent(path.queue_us / step_us)} of the step, what came next on"
      " that path had its inputs and waited for a device or link at other"
      " work."
    )


def _bottleneck(explanation: Explanation) -> Iterator[str]:
  schedule, best = explanation.schedule, explanation.bottleneck
  step_us = schedule.step_time_us
  if best is not None:
    yield (
      f"The bottleneck is {best.kind} {best.name}, busy for"
      f" {_percent(best.busy_us / step_us)} of the step: twice as fast, it"
      f" would shorten the step by {_percent(best.gain_us / step_us)}, to"
      f" {format_us(best.if_twice_as_fast_us)}."
    )
  elif explanation.loads:
    yield (
      "There is no single bottleneck: no device or link, made twice as fast,"
      f" would shorten the step by more than {_percent(MIN_GAIN)}."
    )
  names = device_names(schedule)
  idle = [n for n, us in zip(names, schedule.busy_us, strict=True) if us == 0]
  if idle and len(names) > 1:
    verb = "computes" if len(idle) == 1 else "compute"
    yield f"{_listed(idle)} {verb} nothing."


def _layers(explanation: Explanation) -> Iterator[str]:
  step_us = explanation.schedule.step_time_us
  top = [x for x in explanation.path.layers if x.compute_us > 0][:_SHOWN]
  if top and step_us > 0:
    parts = [
      f"{x.name} ({_percent(x.compute_us / step_us)}, on"
      f" {_listed(x.devices[:_SHOWN])})"
      for x in top
    ]
    yield f"Of that path, these layers compute longest: {_listed(parts)}."


def _what_if(explanation: Explanation) -> Iterator[str]:
  if not explanation.what_if:
    return
  now, *others = explanation.what_if
  step_us = explanation.schedule.step_time_us
  if now.replaced_us is not None:
    gain = 1 - now.replaced_us / step_us if step_us > 0 else 0.0
    yield (
      f"A new search on the same hardware found {format_us(now.replaced_us)}"
      f" ({_percent(gain)} shorter, by {now.replaced_by})."
      if gain > 0
      else "A new search on the same hardware found nothing better."
    )
  for other in others:
    if other.name.startswith(ONE_MORE) and other.replaced_us is None:
      continue  # the placement does not use it, so there is nothing to say
    text = (
      f"With {other.name}, this placement would take"
      f" {format_us(other.same_order_us)} in the same order"
    )
    if other.step_time_us > _NOTICED * other.same_order_us:
      text += f", {format_us(other.step_time_us)} where the order may change"
    if other.replaced_us is not None:
      text += f"; the best one found for it, {format_us(other.replaced_us)}"
    yield f"{text}."


def _memory(explanation: Explanation) -> Iterator[str]:
  schedule = explanation.schedule
  limits = schedule.placement.problem.cluster.memory_bytes
  names, peaks = device_names(schedule), schedule.peak_memory_bytes
  share = np.where(np.isfinite(limits), peaks / np.maximum(limits, 1), 0.0)
  for i in np.flatnonzero(peaks > limits):
    yield (
      f"It does not fit: {names[i]} needs {format_bytes(peaks[i])} and has"
      f" {format_bytes(limits[i])}."
    )
  if explanation.is_feasible and share.any():
    i = int(share.argmax())
    yield (
      f"It fits in memory: the fullest device, {names[i]}, needs"
      f" {format_bytes(peaks[i])} of {format_bytes(limits[i])}."
    )


def _listed(parts: Sequence[str]) -> str:
  """["a", "b", "c"] -> "a, b and c"."""
  if len(parts) < 2:
    return "".join(parts)
  return f"{', '.join(parts[:-1])} and {parts[-1]}"
