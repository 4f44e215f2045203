"""Tables of an explanation, for a terminal and for the HTML report."""

import dataclasses
from collections.abc import Iterator

from tfplace.graph.quantities import format_share, format_us
from tfplace.report.explain import Explanation
from tfplace.report.explain.microbatches import MicrobatchReport
from tfplace.report.rows import DEVICE, listed
from tfplace.report.summary import format_peak
from tfplace.report.table import Table

_MAX_ROWS = 12


def explanation_tables(explanation: Explanation) -> Iterator[Table]:
  """Yields the tables of an explanation in reading order."""
  step_us, path = explanation.step_time_us, explanation.critical_path

  def timed(us: float) -> tuple[str, str]:
    return format_us(us), format_share(us, step_us)

  yield Table(
    "Devices",
    ("device", "busy", "share", "MFU", "peak memory", "what is there"),
    [
      (
        x.name,
        *timed(x.busy_us),
        "-" if x.share_of_peak is None else format_share(x.share_of_peak, 1),
        format_peak(x.peak_memory_bytes, x.memory_bytes),
        x.holds or "-",
      )
      for x in explanation.devices
    ],
  )
  report = explanation.microbatching
  if report is not None:
    yield _microbatch_table(report, step_us)
    limits = {x.name: x.gain_us for x in report.limits}
    limits["after the last microbatch"] = report.tail_us
    yield Table(
      "Limits of the microbatched step",
      ("limit", "time", "share"),
      [(name, *timed(us)) for name, us in limits.items()],
    )
  launch_us = sum(x.idle_us for x in path.parts if x.kind == DEVICE)
  kinds = {
    "computation": path.compute_us,
    "communication": path.transfer_us,
    "sends and receives of devices": path.message_us,
    "launch overhead of ops": launch_us,
    "latency and gaps of links": path.idle_us - launch_us,
    "of these: what is next was ready and queued": path.queue_us,
  }
  yield Table(
    "Critical path by kind",
    ("kind", "time", "share"),
    [(name, *timed(us)) for name, us in kinds.items() if us > 0],
  )
  columns = ("needed next", "queued behind", "sends, receives", "idle")
  yield Table(
    "Critical path by device and link",
    ("where", "ops, transfers", *columns, "share"),
    [
      (
        f"{x.kind} {x.name}",
        f"{x.count:,}",
        *map(format_us, (x.needed_us, x.queue_us, x.message_us, x.idle_us)),
        format_share(x.total_us, step_us),
      )
      for x in path.parts[:_MAX_ROWS]
    ],
  )
  yield Table(
    "Layers on the critical path",
    ("layer", "ops", "time", "share", "devices"),
    [
      (x.name, f"{x.count:,}", *timed(x.compute_us), listed(x.devices))
      for x in [x for x in path.layers if x.compute_us > 0][:_MAX_ROWS]
    ],
  )
  yield Table(
    "If one were twice as fast, in the same order",
    ("what", "busy", "share", "step time", "gain"),
    [
      (
        f"{x.kind} {x.name}",
        *timed(x.busy_us),
        format_us(x.if_twice_as_fast_us),
        format_us(x.gain_us),
      )
      for x in explanation.if_twice_as_fast[:_MAX_ROWS]
    ],
  )


def _microbatch_table(report: MicrobatchReport, step_us: float) -> Table:
  columns = ("forward", "backward", "update, shared", "overhead")
  rows = []
  for device in report.devices:
    name, *times_us = dataclasses.astuple(device)
    rows.append((name, *(format_share(us, step_us) for us in times_us)))
  return Table(
    "Devices in the microbatched step",
    ("device", *columns, "sends, receives", "waiting"),
    rows,
  )
