"""Sentences about a microbatched step: parallelism, bubble and limits."""

from collections.abc import Iterator, Sequence

from tfplace.core.units import format_share
from tfplace.report.explain.config import CONFIG
from tfplace.report.explain.microbatches import parallelism as patterns
from tfplace.report.explain.microbatches.bubble import (
  BALANCE,
  LINKS,
  OVERHEAD,
  THE_UPDATE,
  Limit,
  MicrobatchReport,
)
from tfplace.report.explain.microbatches.parallelism import (
  MicrobatchGroup,
  Parallelism,
)
from tfplace.report.explain.path import PathSummary
from tfplace.report.names import listed


def microbatch_sentences(
  report: MicrobatchReport, path: PathSummary
) -> list[str]:
  """Summarizes a microbatched step and its critical path, as sentences."""
  return [
    _use(report),
    *_bubble(report),
    *_limits(report, path),
  ]


def _use(report: MicrobatchReport) -> str:
  found, count = report.parallelism, report.num_microbatches
  names = [device.name for device in report.devices]
  all_of_them = f"The {count} microbatches"
  if not found.groups:
    return f"{all_of_them} take no time."
  part = ""
  if found.followed < 1 - CONFIG.min_gain:
    part = f", with {format_share(found.followed, 1)} of their work"
  if found.pattern == patterns.ONE_DEVICE:
    used = [names[d] for group in found.groups for d in group.devices]
    return (
      f"{all_of_them} run one after the other on {listed(used)} (gradient"
      f" accumulation{part})."
    )
  if found.pattern == patterns.DATA_PARALLEL:
    homes = _homes(found, names)
    return f"{all_of_them} are used for data parallelism{part}: {homes}."
  if found.pattern == patterns.PIPELINE:
    stages = _few([_stage(found, d, names) for d in found.stages])
    of = f" of {len(found.stages)} stages" if len(found.stages) > 1 else ""
    return f"{all_of_them} are used for a pipeline{of}{part}: {stages}."
  if found.pattern == patterns.PIPELINES:
    groups = _few([_group(group, names) for group in found.groups])
    return (
      f"{all_of_them} are used for {len(found.groups)} pipelines side by side"
      f" (data and pipeline parallelism){part}: {groups}."
    )
  return _mixture(found, all_of_them)


def _mixture(found: Parallelism, all_of_them: str) -> str:
  shares = (
    (found.apart, "one device for each microbatch (data parallelism)"),
    (found.together, "one device for all microbatches (a pipeline)"),
    (found.divided, "several devices for one microbatch"),
  )
  parts = [
    f"{format_share(share, 1)} of the work is in layers with {what}"
    for share, what in sorted(shares, reverse=True)
    if share >= CONFIG.min_gain
  ]
  return f"{all_of_them} are used in a mixture: {listed(parts)}."


def _homes(found: Parallelism, names: Sequence[str]) -> str:
  home = found.time_us.argmax(axis=1).tolist()
  parts = []
  for device in dict.fromkeys(home):
    own = [str(m) for m, at in enumerate(home) if at == device]
    parts.append(f"{listed(own)} on {names[device]}")
  return _few(parts)


def _stage(found: Parallelism, device: int, names: Sequence[str]) -> str:
  return f"{names[device]} has {in_blocks(found.stages[device])}"


def in_blocks(stage: Sequence[tuple[str, str]]) -> str:
  """Lists the layers of a device as blocks of neighbors; see `Parallelism`."""
  blocks = [
    first if first == last else f"{first} to {last}" for first, last in stage
  ]
  more = len(blocks) - CONFIG.max_blocks
  if more > 0:
    blocks[CONFIG.max_blocks :] = [
      f"{more} more block{'s' if more > 1 else ''} of layers"
    ]
  return listed(blocks)


def _group(group: MicrobatchGroup, names: Sequence[str]) -> str:
  numbers = listed(list(map(str, group.microbatches)))
  return f"{numbers} on {listed([names[d] for d in group.devices])}"


def _few(parts: Sequence[str]) -> str:
  shown = "; ".join(parts[: CONFIG.max_parts])
  more = len(parts) - CONFIG.max_parts
  return f"{shown}; and {more} more" if more > 0 else shown


def _bubble(report: MicrobatchReport) -> Iterator[str]:
  step_us = report.step_time_us
  workers = [report.devices[i] for i in report.workers]
  if step_us <= 0:
    return
  idle = [(step_us - device.busy_us, device.name) for device in workers]
  each = [f"{name} for {format_share(us, step_us)}" for us, name in idle]
  if len(each) > CONFIG.max_parts:
    ends = ((min(idle), "least"), (max(idle), "most"))
    each = [
      f"{name} for {format_share(us, step_us)} (the {which})"
      for (us, name), which in ends
    ]
  who = f"The {len(idle)} devices idle" if len(idle) > 1 else "The device idles"
  text = (
    f"{who} for {format_share(report.bubble, 1)} of the step (the bubble):"
    f" {listed(each)}"
  )
  overhead = sum(device.overhead_us for device in workers) / len(workers)
  if overhead > CONFIG.min_gain * step_us:
    text += f"; {format_share(overhead, step_us)} is overhead of ops"
  yield f"{text}."


def _limits(report: MicrobatchReport, path: PathSummary) -> Iterator[str]:
  step_us = report.step_time_us
  limits = [
    x for x in report.limits if x.gain_us >= CONFIG.min_gain * step_us > 0
  ]
  if not limits:
    yield (
      "Nothing of the split holds it back: stages are balanced, and links, the"
      f" update and the pipeline's fill and drain take under"
      f" {format_share(CONFIG.min_gain, 1)} of the step each."
    )
  for i, limit in enumerate(limits):
    begin = "What limits it most is" if i == 0 else "Then comes"
    yield f"{begin} {limit.name}: {_reason(limit, report, path)}."


def _reason(limit: Limit, report: MicrobatchReport, path: PathSummary) -> str:
  step_us = report.step_time_us
  gain = f"{format_share(limit.gain_us, step_us)} shorter"
  if limit.name == BALANCE:
    workers = [report.devices[i] for i in report.workers]
    own = [(device.own_us, device.name) for device in workers]
    most_us, most = max(own)
    mean_us = sum(us for us, _ in own) / len(own)
    return (
      f"{most} computes microbatches for {format_share(most_us, step_us)} of"
      f" the step, devices on average for {format_share(mean_us, step_us)};"
      f" with that spread evenly, it would be {gain}"
    )
  if limit.name == LINKS:
    return (
      f"transfers are {format_share(path.transfer_us, step_us)} of the critical"
      f" path; with free communication, it would be {gain}"
    )
  if limit.name == THE_UPDATE:
    return (
      f"{format_share(report.tail_us, step_us)} of the step comes after the"
      " last microbatch; if adding gradients and updating variables took no"
      f" time, it would be {gain}"
    )
  if limit.name == OVERHEAD:
    return f"if no op had any, it would be {gain}; fewer microbatches have less"
  return (
    "links and balance aside, devices wait for microbatches on others for"
    f" {format_share(limit.gain_us, step_us)} of the step; another number of"
    " microbatches, or of those in flight, may shorten that"
  )
