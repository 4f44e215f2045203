"""Report on one op: reasons for its device, and step times on others."""

import dataclasses
import difflib

import numpy as np

from tfplace.core.placement import Placement
from tfplace.core.units import format_bytes, format_share, format_us
from tfplace.errors import PlacementError, TfplaceError
from tfplace.report.explain.config import CONFIG
from tfplace.report.rows import device_names
from tfplace.simulate import Schedule, Simulator


@dataclasses.dataclass(frozen=True)
class Move:
  """Move of the op's colocation group to another device.

  Attributes:
    device: short name of the device.
    step_time_us: simulated step time; None if the device is not allowed.
    change_us: increase of the step time; None if the device is not allowed.
    fits: whether every device's peak fits in its memory.
    reason: why the move is not allowed or does not fit, or "".
  """

  device: str
  step_time_us: float | None
  change_us: float | None
  fits: bool
  reason: str


@dataclasses.dataclass(frozen=True)
class OpReport:
  """One op in its step.

  Attributes:
    name: name of the op.
    type: op type, such as "MatMul".
    device: short name of its device.
    colocation: names of the other ops of its colocation group.
    start_us: start time.
    end_us: end time.
    is_critical: whether it is on the critical path.
    received_bytes: bytes of its inputs from other devices.
    sent_bytes: bytes of its outputs to other devices, once per device.
    moves: moves to each other device, in device order.
  """

  name: str
  type: str
  device: str
  colocation: tuple[str, ...]
  start_us: float
  end_us: float
  is_critical: bool
  received_bytes: float
  sent_bytes: float
  moves: tuple[Move, ...]


def report_op(schedule: Schedule, name: str) -> OpReport:
  """Reports on one op and simulates it on every other device.

  Raises:
    TfplaceError: the graph has no such op; suggests similar names.
  """
  problem = schedule.placement.problem
  graph, sent = problem.graph, schedule.transfers
  op = graph.index.get(name)
  if op is None:
    raise TfplaceError(_unknown_op(graph.name, graph.names, name), op=name)
  group = np.flatnonzero(problem.group_of == problem.group_of[op])
  at, short = schedule.placement.devices, device_names(schedule)
  received = (graph.edge_dst == op) & (schedule.transfer_of_edge >= 0)
  return OpReport(
    name=name,
    type=graph.types[op],
    device=short[at[op]],
    colocation=tuple(graph.names[i] for i in group if i != op),
    start_us=float(schedule.op_start_us[op]),
    end_us=float(schedule.op_end_us[op]),
    is_critical=any(
      s.kind == "op" and s.index == op for s in schedule.critical_path
    ),
    received_bytes=float(graph.edge_bytes[received].sum()),
    sent_bytes=float(sent.num_bytes[sent.src_op == op].sum()),
    moves=tuple(
      _move(schedule, group, device, short[device])
      for device in range(problem.cluster.num_devices)
      if device != at[op]
    ),
  )


def _unknown_op(graph: str, names: tuple[str, ...], name: str) -> str:
  inside = [n for n in names if n.startswith(f"{name.rstrip('/')}/")]
  # `head` in a model is `model/head` in its graph.
  inner = [n for n in names if f"/{name.strip('/')}/" in f"/{n}/"]
  near = inside or inner or difflib.get_close_matches(name, names, n=3)
  hint = ""
  if near:
    which = "ops below that name" if inside else "near names"
    shown = ", ".join(map(repr, near[: CONFIG.max_names]))
    hint = (
      f"; {which}: {shown}{', ...' if len(near) > CONFIG.max_names else ''}"
    )
  return f"graph {graph!r} has no op {name!r}{hint}"


def _move(
  schedule: Schedule, group: np.ndarray, device: int, name: str
) -> Move:
  problem = schedule.placement.problem
  devices = schedule.placement.devices.copy()
  devices[group] = device
  try:
    moved = Placement(problem, devices)
  except PlacementError as error:
    return Move(name, None, None, False, str(error))
  evaluation = Simulator(problem).evaluate([moved])[0]
  step_us = evaluation.step_time_us
  reason = "" if evaluation.feasible else "does not fit in memory"
  return Move(
    name, step_us, step_us - schedule.step_time_us, not reason, reason
  )


def op_summary(op: OpReport, step_time_us: float) -> list[str]:
  """Summarizes why an op is on its device, one sentence per item."""
  where = "on the critical path" if op.is_critical else "off the critical path"
  sentences = [
    f"{op.name} ({op.type}) runs on {op.device} from {format_us(op.start_us)}"
    f" to {format_us(op.end_us)}, {where}."
  ]
  if op.colocation:
    count = len(op.colocation)
    shown = ", ".join(op.colocation[: CONFIG.max_names])
    more = (
      f" and {count - CONFIG.max_names} more"
      if count > CONFIG.max_names
      else ""
    )
    sentences.append(f"It is colocated with {shown}{more}, which move with it.")
  if op.received_bytes or op.sent_bytes:
    sentences.append(
      f"It receives {format_bytes(op.received_bytes)} from other devices and"
      f" sends {format_bytes(op.sent_bytes)} to them."
    )
  sentences.append(_verdict(op, step_time_us))
  return sentences


def _verdict(op: OpReport, step_us: float) -> str:
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
  if change_us < -CONFIG.same * step_us:
    return (
      f"Moving it to {device} would shorten the step by {format_us(-change_us)}"
      f" ({format_share(-change_us, step_us)})."
    )
  if change_us <= CONFIG.same * step_us:
    return f"The step would be the same with it on {device}."
  return (
    f"It is on {op.device} because the step would be {format_us(change_us)}"
    f" longer with it on {device}, and no other device is better."
  )
