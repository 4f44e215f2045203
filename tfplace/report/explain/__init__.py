"""Explanation of a placement's step time, as data and as sentences."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from tfplace.core.order import RANK
from tfplace.core.placement import Placement
from tfplace.core.progress import Progress, silent
from tfplace.core.units import format_bytes, format_share, format_us
from tfplace.report.explain.bottleneck import Load, find_loads
from tfplace.report.explain.config import CONFIG
from tfplace.report.explain.efficiency import peak_shares, utilization
from tfplace.report.explain.microbatches import (
  MicrobatchReport,
  microbatch_sentences,
  report_microbatches,
)
from tfplace.report.explain.one_op import OpReport, report_op
from tfplace.report.explain.path import PathSummary, summarize_path
from tfplace.report.explain.what_if import (
  ONE_MORE,
  WhatIf,
  try_other_hardware,
)
from tfplace.report.names import listed
from tfplace.report.rows import device_names
from tfplace.simulate import Schedule, Simulator


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
  """Explanation of a step time.

  Attributes:
    schedule: the simulated step.
    path: summary of its critical path.
    loads: devices and links, sorted by the gain from doubling their speed.
    what_if: the step on other hardware, starting with the given cluster.
    op: report on the requested op, if any.
    microbatches: report on microbatches, if there are several.
    peak_shares: [num_devices] share of each device's data-sheet peak, NaN where
      it is unknown.
  """

  schedule: Schedule
  path: PathSummary
  loads: tuple[Load, ...]
  what_if: tuple[WhatIf, ...]
  peak_shares: np.ndarray
  op: OpReport | None = None
  microbatches: MicrobatchReport | None = None

  @property
  def ratio_to_bound(self) -> float | None:
    """Returns the step time divided by the lower bound; None if that is 0."""
    bound_us = self.schedule.placement.problem.lower_bound_us
    return self.schedule.step_time_us / bound_us if bound_us > 0 else None

  @property
  def utilization(self) -> float | None:
    """Share of peak (MFU) of the devices in use; None if it is unknown."""
    return utilization(self.peak_shares)

  @property
  def bottleneck(self) -> Load | None:
    """Load with the largest gain, if that is worth reporting."""
    least_us = CONFIG.min_gain * self.schedule.step_time_us
    best = self.loads[0] if self.loads else None
    return best if best is not None and best.gain_us > least_us else None

  @property
  def is_feasible(self) -> bool:
    """Returns whether every device's peak fits in its memory."""
    limits = self.schedule.placement.problem.cluster.memory_bytes
    return bool(np.all(self.schedule.peak_memory_bytes <= limits))


def explain(
  placement: Placement,
  op: str | None = None,
  seconds: float = 0.0,
  seed: int = 0,
  on_progress: Progress = silent,
) -> Explanation:
  """Explains a placement by simulating it and modified hardware.

  Args:
    placement: the placement. Its problem's bound is the proven one after
      `bounds.tightened`, else that of rule 7 (bound) of docs/simulation.md.
    seconds: search time for a new placement on each modified hardware; 0 for no
      search.
    on_progress: called with a description of the next step.

  Raises:
    TfplaceError: there is no such op.
  """
  schedule = Simulator(placement.problem).schedule(placement)
  return Explanation(
    schedule=schedule,
    op=None if op is None else report_op(schedule, op),
    path=summarize_path(schedule),
    loads=find_loads(schedule),
    what_if=try_other_hardware(schedule, seconds, seed, on_progress),
    microbatches=report_microbatches(schedule),
    peak_shares=peak_shares(schedule),
  )


def summary(explanation: Explanation) -> list[str]:
  """Summarizes an explanation, one sentence per item."""
  return [
    *_step(explanation),
    *_utilization(explanation),
    *_order(explanation),
    *_microbatches(explanation),
    *_path(explanation),
    *_bottleneck(explanation),
    *_layers(explanation),
    *_what_if(explanation),
    *_memory(explanation),
  ]


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
    yield (
      f"{text}; by the lower bound of {bound}, no placement is more than 0.1%"
      " faster."
    )
  else:
    yield (
      f"{text}: {ratio:.2f} times the lower bound of {bound}, so no placement"
      f" can shorten it by more than {format_share(gain, 1)}."
    )


def _utilization(explanation: Explanation) -> Iterator[str]:
  share = explanation.utilization
  if share is not None:
    count = int(np.sum(~np.isnan(explanation.peak_shares)))
    used = int(np.sum(explanation.schedule.busy_us > 0))
    devices = "device" if count == 1 else f"{count} devices"
    whose = (
      f"its {devices}" if count == used else f"the {devices} that have one"
    )
    yield (
      f"The step reaches {format_share(share, 1)} of the data-sheet peak of"
      f" {whose} (MFU)."
    )


def _order(explanation: Explanation) -> Iterator[str]:
  if explanation.schedule.placement.problem.order == RANK:
    yield (
      "Devices take their ops by rank, what was begun first, not as the ops"
      " arrive."
    )


def _microbatches(explanation: Explanation) -> Iterator[str]:
  if explanation.microbatches is not None:
    yield from microbatch_sentences(explanation.microbatches, explanation.path)


def _path(explanation: Explanation) -> Iterator[str]:
  path, step_us = explanation.path, explanation.schedule.step_time_us
  if not path.parts or step_us <= 0:
    return
  shares = (
    (path.compute_us, "computation"),
    (path.transfer_us, "communication"),
    (path.message_us, "sending and receiving by devices"),
    (path.launch_us, "launch overhead of ops"),
    (path.latency_us, "latency of links"),
  )
  parts = [f"{format_share(us, step_us)} {x}" for us, x in shares if us > 0]
  if parts:
    yield f"The critical path is {listed(parts)}."
  for kind, queue_us in path.queues_us.items():
    yield (
      f"For {format_share(queue_us, step_us)} of the step, what comes next on"
      f" that path was ready and queued for a busy {kind}."
    )


def _bottleneck(explanation: Explanation) -> Iterator[str]:
  schedule, best = explanation.schedule, explanation.bottleneck
  step_us = schedule.step_time_us
  if best is not None:
    yield (
      f"The bottleneck is {best.kind} {best.name}, busy for"
      f" {format_share(best.busy_us, step_us)} of the step: twice as fast, it"
      f" would shorten the step by {format_share(best.gain_us, step_us)}, to"
      f" {format_us(best.if_twice_as_fast_us)}."
    )
  elif explanation.loads:
    yield (
      "There is no single bottleneck: no device or link, made twice as fast,"
      " would shorten the step by more than"
      f" {format_share(CONFIG.min_gain, 1)}."
    )
  names = device_names(schedule)
  idle = [n for n, us in zip(names, schedule.busy_us, strict=True) if us == 0]
  if idle and len(names) > 1:
    verb = "computes" if len(idle) == 1 else "compute"
    yield f"{listed(idle)} {verb} nothing."


def _layers(explanation: Explanation) -> Iterator[str]:
  step_us = explanation.schedule.step_time_us
  top = [x for x in explanation.path.layers if x.compute_us > 0][
    : CONFIG.max_layers
  ]
  if top and step_us > 0:
    parts = [
      f"{x.name} ({format_share(x.compute_us, step_us)}, on"
      f" {listed(x.devices[: CONFIG.max_layers])})"
      for x in top
    ]
    yield f"The layers that take longest on it are {listed(parts)}."


def _what_if(explanation: Explanation) -> Iterator[str]:
  if not explanation.what_if:
    return
  now, *others = explanation.what_if
  step_us = explanation.schedule.step_time_us
  if now.replaced_us is not None:
    gain = 1 - now.replaced_us / step_us if step_us > 0 else 0.0
    yield (
      f"A new search on the same hardware found {format_us(now.replaced_us)}"
      f" ({format_share(gain, 1)} shorter, by {now.replaced_by})."
      if gain > 0
      else "A new search on the same hardware found nothing better."
    )
  for other in others:
    if other.name.startswith(ONE_MORE) and other.replaced_us is None:
      continue  # the placement does not use it
    text = (
      f"With {other.name}, this placement would take"
      f" {format_us(other.same_order_us)} in the same order"
    )
    if other.step_time_us > CONFIG.noticed * other.same_order_us:
      text += f", {format_us(other.step_time_us)} simulated anew"
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
