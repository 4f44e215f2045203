"""Sentences about a microbatched step: parallelism, bubble and limits."""

from collections.abc import Iterator, Sequence

from tfplace.core.units import format_share
from tfplace.report.explain import spread as spread_lib
from tfplace.report.explain.path import PathSummary
from tfplace.report.explain.split import (
  BALANCE,
  LINKS,
  OVERHEAD,
  THE_UPDATE,
  Limit,
  SplitReport,
)
from tfplace.report.explain.spread import Group, Spread
from tfplace.report.names import listed

MIN_GAIN = 0.01  # fraction of the step; smaller limits are not reported
_NAMED = 4  # devices, groups or stages to name in a sentence
_BLOCKS = 2  # blocks of a stage's layers to name


def split_summary(split: SplitReport, path: PathSummary) -> list[str]:
  """Summarizes a microbatched step and its critical path, as sentences."""
  return [
    _use(split),
    *_bubble(split),
    *_limits(split, path),
  ]


def _use(split: SplitReport) -> str:
  spread, count = split.spread, split.microbatches
  names = [device.name for device in split.devices]
  all_of_them = f"The {count} microbatches"
  if not spread.groups:
    return f"{all_of_them} take no time."
  part = ""
  if spread.followed < 1 - MIN_GAIN:
    part = f", with {format_share(spread.followed, 1)} of their work"
  if spread.pattern == spread_lib.ONE_DEVICE:
    used = [names[d] for group in spread.groups for d in group.devices]
    return (
      f"{all_of_them} run one after the other on {listed(used)} (gradient"
      f" accumulation{part})."
    )
  if spread.pattern == spread_lib.DATA_PARALLEL:
    homes = _homes(spread, names)
    return f"{all_of_them} are used for data parallelism{part}: {homes}."
  if spread.pattern == spread_lib.PIPELINE:
    stages = _few([_stage(spread, d, names) for d in spread.stages])
    of = f" of {len(spread.stages)} stages" if len(spread.stages) > 1 else ""
    return f"{all_of_them} are used for a pipeline{of}{part}: {stages}."
  if spread.pattern == spread_lib.PIPELINES:
    groups = _few([_group(group, names) for group in spread.groups])
    return (
      f"{all_of_them} are used for {len(spread.groups)} pipelines side by side"
      f" (data and pipeline parallelism){part}: {groups}."
    )
  return _mixture(spread, all_of_them)


def _mixture(spread: Spread, all_of_them: str) -> str:
  shares = (
    (spread.apart, "one device for each microbatch (data parallelism)"),
    (spread.together, "one device for all microbatches (a pipeline)"),
    (spread.divided, "several devices for one microbatch"),
  )
  parts = [
    f"{format_share(share, 1)} of the work is in layers with {what}"
    for share, what in sorted(shares, reverse=True)
    if share >= MIN_GAIN
  ]
  return f"{all_of_them} are used in a mixture: {listed(parts)}."


def _homes(spread: Spread, names: Sequence[str]) -> str:
  home = spread.time_us.argmax(axis=1).tolist()
  parts = []
  for device in dict.fromkeys(home):
    own = [str(m) for m, at in enumerate(home) if at == device]
    parts.append(f"{listed(own)} on {names[device]}")
  return _few(parts)


def _stage(spread: Spread, device: int, names: Sequence[str]) -> str:
  blocks = [
    first if first == last else f"{first} to {last}"
    for first, last in spread.stages[device]
  ]
  more = len(blocks) - _BLOCKS
  if more > 0:
    blocks[_BLOCKS:] = [f"{more} more block{'s' if more > 1 else ''} of layers"]
  return f"{names[device]} has {listed(blocks)}"


def _group(group: Group, names: Sequence[str]) -> str:
  numbers = listed(list(map(str, group.microbatches)))
  return f"{numbers} on {listed([names[d] for d in group.devices])}"


def _few(parts: Sequence[str]) -> str:
  shown = "; ".join(parts[:_NAMED])
  more = len(parts) - _NAMED
  return f"{shown}; and {more} more" if more > 0 else shown


def _bubble(split: SplitReport) -> Iterator[str]:
  step_us = split.step_time_us
  workers = [split.devices[i] for i in split.workers]
  if step_us <= 0:
    return
  idle = [(step_us - device.busy_us, device.name) for device in workers]
  each = [f"{name} for {format_share(us, step_us)}" for us, name in idle]
  if len(each) > _NAMED:
    ends = ((min(idle), "least"), (max(idle), "most"))
    each = [
      f"{name} for {format_share(us, step_us)} (the {which})"
      for (us, name), which in ends
    ]
  who = f"The {len(idle)} devices idle" if len(idle) > 1 else "The device idles"
  text = (
    f"{who} for {format_share(split.bubble, 1)} of the step (the bubble):"
    f" {listed(each)}"
  )
  overhead = sum(device.overhead_us for device in workers) / len(workers)
  if overhead > MIN_GAIN * step_us:
    text += f"; {format_share(overhead, step_us)} is overhead of ops"
  yield f"{text}."


def _limits(split: SplitReport, path: PathSummary) -> Iterator[str]:
  step_us = split.step_time_us
  limits = [x for x in split.limits if x.gain_us >= MIN_GAIN * step_us > 0]
  if not limits:
    yield (
      "Nothing of the split holds it back: stages are balanced, and links, the"
      f" update and the pipeline's fill and drain take under"
      f" {format_share(MIN_GAIN, 1)} of the step each."
    )
  for i, limit in enumerate(limits):
    begin = "What limits it most is" if i == 0 else "Then comes"
    yield f"{begin} {limit.name}: {_reason(limit, split, path)}."


def _reason(limit: Limit, split: SplitReport, path: PathSummary) -> str:
  step_us = split.step_time_us
  gain = f"{format_share(limit.gain_us, step_us)} shorter"
  if limit.name == BALANCE:
    workers = [split.devices[i] for i in split.workers]
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
      f"{format_share(split.tail_us, step_us)} of the step comes after the last"
      " microbatch; if adding gradients and updating variables took no time, it"
      f" would be {gain}"
    )
  if limit.name == OVERHEAD:
    return f"if no op had any, it would be {gain}; fewer microbatches have less"
  return (
    "links and balance aside, devices wait for microbatches on others for"
    f" {format_share(limit.gain_us, step_us)} of the step; another number of"
    " microbatches, or of those in flight, may shorten that"
  )
