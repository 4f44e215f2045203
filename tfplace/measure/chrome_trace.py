"""A measured step as events of a Chrome trace, which Perfetto opens.

Every device is a track with its ops, and one below it with what it received.
The format is the "Trace Event Format" of Chromium's catapult project; its
times are microseconds, as ours. (`tfplace.report.trace` does the same for a
simulated step; the two lie side by side in one file.)
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tfplace.measure import messages

Event = dict[str, Any]
MEASURED = 10  # process id; simulated steps use lower ones


def trace_events(
  trace: messages.Trace,
  devices: Sequence[str],
  title: str = "measured devices",
) -> Iterator[Event]:
  """One traced step.

  Args:
    trace: of the step.
    devices: their names, in the order of the tracks.
    title: of the group of tracks.
  """
  yield _meta("process_name", 0, {"name": title})
  yield _meta("process_sort_index", 0, {"sort_index": MEASURED})
  tracks = {name: 2 * i for i, name in enumerate(devices)}
  for name, track in tracks.items():
    yield _meta("thread_name", track, {"name": name})
    yield _meta("thread_name", track + 1, {"name": f"{name} receives"})
  for op, time in trace.ops.items():
    if time.device in tracks:
      sizes = {str(i): size for i, size in time.output_bytes.items()}
      args = {"output_bytes": sizes}
      track = tracks[time.device]
      yield _slice(track, op, time.start_us, time.compute_us, args)
  for move in trace.transfers:
    if move.device in tracks:
      track = tracks[move.device] + 1
      yield _slice(track, move.label, move.start_us, move.duration_us, {})


def _meta(name: str, thread: int, args: Event) -> Event:
  return {"ph": "M", "name": name, "pid": MEASURED, "tid": thread, "args": args}


def _slice(
  thread: int, name: str, start_us: float, took_us: float, args: Event
) -> Event:
  return {
    "ph": "X",
    "name": name,
    "pid": MEASURED,
    "tid": thread,
    "ts": float(start_us),
    "dur": float(took_us),
    "args": args,
  }
