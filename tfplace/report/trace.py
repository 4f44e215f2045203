"""Chrome trace of a simulated step, which https://ui.perfetto.dev opens.

Devices and channels are tracks, and memory is a counter. The critical path and
the passes of microbatches have their own tracks. The format is the "Trace Event
Format" of Chromium's catapult project, with times in microseconds.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfplace.formats.json_file import write_json
from tfplace.graph import phases
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.placement import Placement
from tfplace.report.rows import (
  as_schedule,
  channel_names,
  compute_end_us,
  critical_spans,
  device_names,
  transfer_name,
)
from tfplace.simulate import Schedule, critical_path

Event = dict[str, Any]
DEVICES, CHANNELS, CRITICAL, MEMORY, PASSES = range(1, 6)  # process ids


def save_trace(
  step: Schedule | Placement, path: str | os.PathLike[str]
) -> None:
  """Writes the trace atomically, with gzip if the name ends in .gz.

  Raises:
    FormatError: the file cannot be written.
  """
  write_json(path, make_trace(as_schedule(step)))


def make_trace(schedule: Schedule) -> dict[str, Any]:
  """Builds the trace as JSON data."""
  problem = schedule.placement.problem
  parts = (_names, _passes, _ops, _transfers, _critical_path, _memory)
  return {
    "traceEvents": [event for part in parts for event in part(schedule)],
    "displayTimeUnit": "ms",
    "otherData": {
      "graph": problem.graph.name,
      "cluster": problem.cluster.name,
      "step_time_us": schedule.step_time_us,
      "lower_bound_us": problem.lower_bound_us,
    },
  }


def _names(schedule: Schedule) -> Iterator[Event]:
  devices = [d.name for d in schedule.placement.problem.cluster.devices]
  has_passes = phases.is_microbatched(schedule.placement.problem.graph)
  tracks: tuple[tuple[int, str, list[str]], ...] = (
    *([(PASSES, "microbatches", devices)] if has_passes else []),
    (DEVICES, "devices", devices),
    (CHANNELS, "channels", channel_names(schedule)),
    (CRITICAL, "critical path", []),
    (MEMORY, "memory", []),
  )
  for i, (process, title, threads) in enumerate(tracks):
    yield _meta("process_name", process, 0, {"name": title})
    yield _meta("process_sort_index", process, 0, {"sort_index": i})
    for thread, name in enumerate(threads):
      yield _meta("thread_name", process, thread, {"name": name})


def _meta(name: str, process: int, thread: int, args: Event) -> Event:
  return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": args}


def _slice(
  track: tuple[int, int],
  name: str,
  times_us: tuple[float, float],
  args: Event,
  category: str,
) -> Event:
  start_us, end_us = map(float, times_us)
  return {
    "ph": "X",
    "name": name,
    "cat": category,
    "pid": track[0],
    "tid": track[1],
    "ts": start_us,
    "dur": end_us - start_us,
    "args": args,
  }


def _passes(schedule: Schedule) -> Iterator[Event]:
  """Yields uninterrupted passes of microbatches on each device."""
  graph, at = schedule.placement.problem.graph, schedule.placement.devices
  if not phases.is_microbatched(graph):
    return
  phase, ends_us = phases.phases(graph), compute_end_us(schedule)
  ran = np.flatnonzero(ends_us > schedule.op_start_us)
  ran = ran[np.lexsort((schedule.op_start_us[ran], at[ran]))]
  keys = np.stack((at, graph.microbatch, phase))[:, ran]
  first = np.flatnonzero(np.diff(keys, prepend=-2).any(axis=0))
  last = np.append(first, len(ran))[1:] - 1
  for begin, end in zip(first.tolist(), last.tolist(), strict=True):
    device, microbatch, number = keys[:, begin].tolist()
    name = title = phases.NAMES[number]
    args: Event = {"ops": end - begin + 1}
    if microbatch >= 0:
      title, args["microbatch"] = f"{name} {microbatch}", microbatch
    times = schedule.op_start_us[ran[begin]], ends_us[ran[end]]
    yield _slice((PASSES, device), title, times, args, name)


def _origin(graph: OpGraph, op: int) -> Event:
  """Returns the microbatch and the layer of an op, if it has them."""
  args: Event = {}
  if graph.microbatch[op] >= 0:
    args["microbatch"] = int(graph.microbatch[op])
  if graph.layer[op] >= 0:
    args["layer"] = graph.layer_names[graph.layer[op]]
  return args


def _ops(schedule: Schedule) -> Iterator[Event]:
  graph = schedule.placement.problem.graph
  path = critical_path.segments(schedule)
  critical = {s.index for s in path if s.kind == critical_path.OP}
  sizes, ends_us = graph.op_output_bytes, compute_end_us(schedule)
  for op, device in enumerate(schedule.placement.devices.tolist()):
    args = {
      "type": graph.types[op],
      "output_bytes": float(sizes[op]),
      "temp_bytes": float(graph.temp_bytes[op]),
      "persistent_bytes": float(graph.persistent_bytes[op]),
      "critical": op in critical,
      **_origin(graph, op),
    }
    times = schedule.op_start_us[op], ends_us[op]
    track, kind = (DEVICES, device), graph.types[op]
    yield _slice(track, graph.names[op], times, args, kind)


def _transfers(schedule: Schedule) -> Iterator[Event]:
  """Yields transfers on their channels, and sends and receives on devices."""
  sent, graph = schedule.transfers, schedule.placement.problem.graph
  devices = schedule.placement.problem.cluster.devices
  for i in range(len(sent)):
    name, size = transfer_name(schedule, i), float(sent.num_bytes[i])
    args = {
      "from": devices[sent.src[i]].name,
      "to": devices[sent.dst[i]].name,
      "bytes": size,
      "queued_us": float(schedule.op_end_us[sent.src_op[i]]),
      "arrival_us": float(sent.arrival_us[i]),
      **_origin(graph, int(sent.src_op[i])),
    }
    times = sent.start_us[i], sent.sent_us[i]
    track = CHANNELS, int(sent.channel[i])
    yield _slice(track, name, times, args, "transfer")
    for verb, device, times in (
      ("send", sent.src[i], (sent.send_start_us[i], sent.send_end_us[i])),
      ("receive", sent.dst[i], (sent.recv_start_us[i], sent.recv_end_us[i])),
    ):
      if times[1] > times[0]:
        track, title = (DEVICES, int(device)), f"{verb} {name}"
        yield _slice(track, title, times, {"bytes": size}, verb)


def _critical_path(schedule: Schedule) -> Iterator[Event]:
  names = schedule.placement.problem.graph.names
  for segment, end_us in critical_spans(schedule):
    if segment.kind == critical_path.OP:
      name = names[segment.index]
    else:
      verb = "receive " * (segment.kind == critical_path.RECEIVE)
      name = f"{verb}{transfer_name(schedule, segment.index)}"
    args = {"waited_for": segment.waited_for}
    times = segment.start_us, end_us
    yield _slice((CRITICAL, 0), name, times, args, segment.kind)


def _memory(schedule: Schedule) -> Iterator[Event]:
  for name, curve in zip(device_names(schedule), schedule.memory, strict=True):
    for time_us, num_bytes in zip(*map(np.ndarray.tolist, curve), strict=True):
      yield {
        "ph": "C",
        "name": f"memory {name}",
        "pid": MEMORY,
        "tid": 0,
        "ts": time_us,
        "args": {"bytes": num_bytes},
      }
