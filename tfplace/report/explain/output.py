"""Explanations as JSON data (`tfplace.explanation.v1`) and as Rich tables."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tfplace.core.units import format_change_us, format_share, format_us
from tfplace.report.explain import Explanation, summary
from tfplace.report.explain.config import CONFIG
from tfplace.report.explain.microbatches import MicrobatchReport
from tfplace.report.explain.one_op import OpReport, op_summary
from tfplace.report.rows import channel_busy_us, channel_names

FORMAT = "tfplace.explanation.v1"


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
  """Converts to JSON, with times in microseconds and sizes in bytes."""
  schedule, path = explanation.schedule, explanation.path
  problem = schedule.placement.problem
  bottleneck = explanation.bottleneck
  data: dict[str, Any] = {
    "format": FORMAT,
    "graph": problem.graph.name,
    "cluster": problem.cluster.name,
    "order": problem.order,
    "step_time_us": schedule.step_time_us,
    "lower_bound_us": problem.lower_bound_us,
    "ratio_to_bound": explanation.ratio_to_bound,
    "share_of_peak": explanation.utilization,
    "feasible": explanation.is_feasible,
    "devices": _devices(explanation),
    "links": _links(explanation),
    "critical_path": {
      "compute_us": path.compute_us,
      "transfer_us": path.transfer_us,
      "queue_us": path.queue_us,
      "idle_us": path.idle_us,
      "message_us": path.message_us,
      "parts": [dataclasses.asdict(part) for part in path.parts],
      "layers": [dataclasses.asdict(layer) for layer in path.layers],
    },
    "bottleneck": None
    if bottleneck is None
    else {"kind": bottleneck.kind, "name": bottleneck.name},
    "if_twice_as_fast": [dataclasses.asdict(x) for x in explanation.loads],
    "what_if": [dataclasses.asdict(x) for x in explanation.what_if],
    "summary": summary(explanation),
  }
  if explanation.microbatches is not None:
    data["split"] = _microbatches(explanation.microbatches)
  if explanation.op is not None:
    data["op"] = {
      **dataclasses.asdict(explanation.op),
      "summary": op_summary(explanation.op, schedule.step_time_us),
    }
  return data


def _devices(explanation: Explanation) -> list[dict[str, Any]]:
  schedule, shares = explanation.schedule, explanation.peak_shares
  devices = schedule.placement.problem.cluster.devices
  return [
    {
      "name": device.name,
      "kind": device.kind,
      "busy_us": float(schedule.busy_us[i]),
      "share_of_peak": None if np.isnan(shares[i]) else float(shares[i]),
      "peak_memory_bytes": float(schedule.peak_memory_bytes[i]),
      "memory_bytes": None
      if math.isinf(device.memory_bytes)
      else device.memory_bytes,
    }
    for i, device in enumerate(devices)
  ]


def _links(explanation: Explanation) -> list[dict[str, Any]]:
  schedule = explanation.schedule
  busy_us = channel_busy_us(schedule)
  return [
    {"name": name, "busy_us": float(us)}
    for name, us in zip(channel_names(schedule), busy_us, strict=True)
  ]


def _microbatches(report: MicrobatchReport) -> dict[str, Any]:
  parallelism = report.parallelism
  return {
    "microbatches": report.num_microbatches,
    "pattern": parallelism.pattern,
    "followed": parallelism.followed,
    "together": parallelism.together,
    "apart": parallelism.apart,
    "divided": parallelism.divided,
    "microbatch_us": parallelism.time_us.tolist(),
    "bubble": report.bubble,
    "devices": [dataclasses.asdict(device) for device in report.devices],
    "tail_us": report.tail_us,
    "limits": [dataclasses.asdict(limit) for limit in report.limits],
  }


def explanation_tables(explanation: Explanation) -> Iterator[RenderableType]:
  """Yields sentences and tables in reading order."""
  step_us = explanation.schedule.step_time_us
  if explanation.op is not None:
    yield _sentences(op_summary(explanation.op, step_us))
    yield _moves_table(explanation.op)
  yield _sentences(summary(explanation))
  if explanation.microbatches is not None:
    yield _shares_table(explanation.microbatches)
  yield _path_table(explanation)
  yield _layers_table(explanation)
  yield _loads_table(explanation)
  yield _what_if_table(explanation)


def _sentences(sentences: list[str]) -> Text:
  return Text("\n".join(sentences) + "\n")


def _table(title: str, first: str, *columns: str) -> Table:
  table = Table(title=Text(title), title_justify="left")
  table.add_column(first)
  for name in columns:
    table.add_column(name, justify="right")
  return table


def _add(table: Table, *cells: str) -> None:
  table.add_row(*map(Text, cells))


def _moves_table(op: OpReport) -> Table:
  table = _table(f"{op.name} elsewhere", "device", "step time", "change")
  table.add_column("why not", overflow="fold")
  for move in op.moves:
    if move.step_time_us is None or move.change_us is None:
      _add(table, move.device, "-", "-", move.reason)
    else:
      step = format_us(move.step_time_us)
      change = format_change_us(move.change_us)
      _add(table, move.device, step, change, move.reason)
  return table


def _shares_table(report: MicrobatchReport) -> Table:
  has_messages = any(device.message_us for device in report.devices)
  table = _table(
    "Devices in the split step",
    "device",
    *("microbatches", "forward", "backward", "update, shared"),
    *("overhead", *(("sends, receives",) if has_messages else ()), "waiting"),
  )
  for i, device in enumerate(report.devices):
    times = [device.forward_us, device.backward_us, device.shared_us]
    times += [device.overhead_us]
    times += [device.message_us] if has_messages else []
    times.append(device.waiting_us)
    shares = [format_share(us, report.step_time_us) for us in times]
    _add(table, device.name, _microbatches_of(report, i), *shares)
  return table


def _microbatches_of(report: MicrobatchReport, device: int) -> str:
  """Lists a device's microbatches, with shares of partial ones: "2 (48%)"."""
  time_us = report.parallelism.time_us
  shares = time_us[:, device] / np.maximum(time_us.sum(axis=1), 1e-300)
  most = np.argsort(-shares, kind="stable")[: CONFIG.max_rows]
  cells = [
    f"{i}" if shares[i] == 1 else f"{i} ({format_share(shares[i], 1)})"
    for i in sorted(most.tolist())
    if shares[i] >= 0.01
  ]
  more = int(np.sum(shares >= 0.01)) - len(cells)
  return ", ".join([*cells, *([f"{more} more"] if more else [])])


def _path_table(explanation: Explanation) -> Table:
  has_messages = explanation.path.message_us > 0
  table = _table(
    "Critical path",
    "where",
    *("ops, transfers", "needed next", "queued behind"),
    *(("sends, receives",) if has_messages else ()),
    *("idle", "share"),
  )
  step_us = explanation.schedule.step_time_us
  for part in explanation.path.parts[: CONFIG.max_rows]:
    times = [part.needed_us, part.queue_us]
    times += [part.message_us] if has_messages else []
    times.append(part.idle_us)
    cells = [f"{part.kind} {part.name}", f"{part.count:,}"]
    cells += map(format_us, times)
    _add(table, *cells, format_share(part.total_us, step_us))
  return table


def _layers_table(explanation: Explanation) -> Table:
  table = _table("Layers on the critical path", "layer", "ops", "time", "share")
  table.add_column("devices")
  step_us = explanation.schedule.step_time_us
  layers = [x for x in explanation.path.layers if x.compute_us > 0]
  for layer in layers[: CONFIG.max_rows]:
    _add(
      table,
      layer.name,
      f"{layer.count:,}",
      format_us(layer.compute_us),
      format_share(layer.compute_us, step_us),
      ", ".join(layer.devices),
    )
  return table


def _loads_table(explanation: Explanation) -> Table:
  table = _table(
    "If one were twice as fast, in the same order",
    "what",
    *("busy", "of the step", "step time", "change"),
  )
  step_us = explanation.schedule.step_time_us
  for load in explanation.loads[: CONFIG.max_rows]:
    _add(
      table,
      f"{load.kind} {load.name}",
      format_us(load.busy_us),
      format_share(load.busy_us, step_us),
      format_us(load.if_twice_as_fast_us),
      format_change_us(-load.gain_us),
    )
  return table


def _what_if_table(explanation: Explanation) -> Table:
  searched = any(x.replaced_us is not None for x in explanation.what_if)
  more = ("best found", "found by", "lower bound") if searched else ()
  table = _table(
    "Other hardware", "with", "same order", "simulated anew", *more
  )
  for x in explanation.what_if:
    cells = [x.name, format_us(x.same_order_us), format_us(x.step_time_us)]
    if searched:
      times = (x.replaced_us, x.lower_bound_us)
      best, bound = ("-" if us is None else format_us(us) for us in times)
      cells += [best, x.replaced_by or "-", bound]
    _add(table, *cells)
  return table
