"""Why one op is where it is: what ties it there, and what moving it, with all
that must stay with it, to each other device would do to the step.
"""

import dataclasses
import difflib

import numpy as np

from tfplace.core.placement import Placement
from tfplace.errors import PlacementError, TfplaceError
from tfplace.report.units import device_names
from tfplace.simulate import Schedule, Simulator

_SHOWN_NAMES = 3


@dataclasses.dataclass(frozen=True)
class Move:
  """One op's group on another device, all else as it is.

  Attributes:
    device: short name of the device.
    step_time_us: of the step then, simulated; None where it is not allowed.
    change_us: how much longer the step is then; None likewise.
    fits: no device's peak exceeds its memory.
    reason: why it is not allowed or does not fit; "" where it does.
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
    name: of the op.
    type: such as "MatMul".
    device: short name of its device.
    colocation: names of the ops that must be where it is, itself not.
    start_us: when it starts.
    end_us: when it ends.
    is_critical: it is on the critical path.
    received_bytes: its inputs that come from other devices.
    sent_bytes: its outputs to other devices, once per device.
    moves: to each other device, in their order.
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
  """Looks at one op and tries every other device for it.

  Raises:
    TfplaceError: the graph has no such op; names those that are spelt alike.
  """
  problem = schedule.placement.problem
  graph = problem.graph
  op = graph.index.get(name)
  if op is None:
    raise TfplaceError(_unknown_op(graph.name, graph.names, name), op=name)
  group = np.flatnonzero(problem.group_of == problem.group_of[op])
  at = schedule.placement.devices
  short = device_names(schedule)
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
    received_bytes=_received_bytes(schedule, op),
    sent_bytes=float(
      schedule.transfers.num_bytes[schedule.transfers.src_op == op].sum()
    ),
    moves=tuple(
      _move(schedule, group, device, short[device])
      for device in range(problem.cluster.num_devices)
      if device != at[op]
    ),
  )


def _unknown_op(graph: str, names: tuple[str, ...], name: str) -> str:
  inside = [n for n in names if n.startswith(f"{name.rstrip('/')}/")]
  # What is called `head` in a model is `model/head` in its graph.
  inner = [n for n in names if f"/{name.strip('/')}/" in f"/{n}/"]
  near = inside or inner or difflib.get_close_matches(name, names, n=3)
  hint = ""
  if near:
    which = "ops below that name" if inside else "near names"
    shown = ", ".join(map(repr, near[:_SHOWN_NAMES]))
    hint = f"; {which}: {shown}{', ...' if len(near) > _SHOWN_NAMES else ''}"
  return f"graph {graph!r} has no op {name!r}{hint}"


def _received_bytes(schedule: Schedule, op: int) -> float:
  graph, at = schedule.placement.problem.graph, schedule.placement.devices
  offsets, order = graph.in_csr
  edges = order[offsets[op] : offsets[op + 1]]
  edges = edges[at[graph.edge_src[edges]] != at[op]]
  return float(graph.edge_bytes[edges].sum())


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
  change_us = evaluation.step_time_us - schedule.step_time_us
  reason = "" if evaluation.feasible else "does not fit in memory"
  return Move(
    name, evaluation.step_time_us, change_us, evaluation.feasible, reason
  )
