"""Report on one op: its time, its traffic, and step times on other devices."""

import dataclasses
import difflib
from collections.abc import Sequence

import numpy as np

from tfplace.core.placement import Placement
from tfplace.errors import PlacementError, TfplaceError
from tfplace.report.rows import device_names
from tfplace.simulate import Schedule, Simulator

_MAX_NAMES = 3  # that an error suggests


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
    hint = _near(graph.names, name)
    raise TfplaceError(
      f"graph {graph.name!r} has no op {name!r}{hint}", op=name
    )
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


def _near(names: Sequence[str], name: str) -> str:
  # `head` in a model is `model/head` in its graph.
  inside = [n for n in names if f"/{name.strip('/')}/" in f"/{n}/"]
  near = inside or difflib.get_close_matches(name, names, n=_MAX_NAMES)
  shown = ", ".join(map(repr, near[:_MAX_NAMES]))
  more = ", ..." if len(near) > _MAX_NAMES else ""
  return f"; near names: {shown}{more}" if near else ""


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
  step_us, fits = evaluation.step_time_us, evaluation.feasible
  change_us = step_us - schedule.step_time_us
  reason = "" if fits else "does not fit in memory"
  return Move(name, step_us, change_us, fits, reason)
