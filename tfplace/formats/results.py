"""Placement and evaluation files (`tfplace.{placement,evaluation}.v1`)."""

import math
from collections.abc import Mapping
from typing import Any

from tfplace.core.evaluation import Evaluation
from tfplace.core.order import ARRIVAL, ORDERS, order_to_json
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import FormatError, shown
from tfplace.formats import json_file

PLACEMENT = "tfplace.placement.v1"
EVALUATION = "tfplace.evaluation.v1"
_SOURCES = ("simulated", "measured")
_PLACEMENT_KEYS = frozenset({"format", "graph", "assignments", "order"})
_EVALUATION_KEYS = frozenset(
  [
    "format",
    "step_time_us",
    "feasible",
    "peak_memory_bytes",
    "busy_us",
    "bytes_moved",
    "lower_bound_us",
    "source",
  ]
)


def load_assignments(path: json_file.Path) -> dict[str, str]:
  """Reads op name -> device name of a placement file of any graph.

  `load_op_order` reads the order of its ops.

  Raises:
    FormatError: the file is invalid; names the file, element and value.
  """
  data = json_file.read_json(path, PLACEMENT)
  with json_file.errors_naming(path):
    read_order(data)
    return _assignments(data)


def load_op_order(path: json_file.Path) -> list[str]:
  """Reads the ops of a placement file in the order in which devices run them.

  Raises:
    FormatError: see `read_op_order`; names the file.
  """
  data = json_file.read_json(path, PLACEMENT)
  with json_file.errors_naming(path):
    return read_op_order(data)


def read_op_order(data: Mapping[str, Any]) -> list[str]:
  """Returns the op order of a parsed file; empty in order of arrival.

  Raises:
    FormatError: the order is unknown, or it is by rank without an op order.
      Ranks require op costs, which a placement file lacks.
  """
  order, ops = read_order(data), data.get("op_order")
  if order == ARRIVAL:
    return []
  if not isinstance(ops, list) or not all(isinstance(op, str) for op in ops):
    raise FormatError(
      f"order: {shown(order)} needs op_order, the names of the ops in the order"
      f" in which devices run them, not {shown(ops)}: save a plan again, or"
      " give what plan_model returned"
    )
  return ops


def read_order(data: Mapping[str, Any]) -> str:
  """Returns the execution order of a parsed file; the default without one."""
  order = data.get("order", ARRIVAL)
  if order not in ORDERS:
    raise FormatError(
      f"order: {shown(order)} is not one of {', '.join(ORDERS)}"
    )
  return str(order)


def load_placement(path: json_file.Path, problem: Problem) -> Placement:
  """Reads a placement of `problem`.

  Args:
    problem: problem of the placement. The result's problem has the execution
      order of the file instead of its own.

  Raises:
    FormatError: the file is invalid or has a placement of another graph; names
      the file, element and value.
    PlacementError: the placement is not allowed; names the file, op and device.
  """
  data = json_file.read_json(path, PLACEMENT)
  with json_file.errors_naming(path):
    name = json_file.required(data, "graph", "placement")
    if name != problem.graph.name:
      raise FormatError(
        f"a placement of graph {shown(name)}, not of {problem.graph.name!r}"
      )
    assignments = _assignments(data)
    extra = json_file.unknown_keys(data, _PLACEMENT_KEYS, "placement")
    ordered = problem.in_order(read_order(data))
    return Placement.from_assignments(ordered, assignments, extra)


def _assignments(data: Mapping[str, Any]) -> dict[str, str]:
  assignments = json_file.as_object(
    json_file.required(data, "assignments", "placement"), "assignments"
  )
  return {
    op: json_file.as_name(device, f"assignments[{shown(op)}]")
    for op, device in assignments.items()
  }


def save_placement(placement: Placement, path: json_file.Path) -> None:
  """Writes a placement file atomically; raises FormatError if it cannot."""
  json_file.write_json(
    path,
    {
      "format": PLACEMENT,
      "graph": placement.problem.graph.name,
      **order_to_json(placement.problem.order),
      "assignments": placement.assignments,
      **placement.extra,
    },
  )


def load_evaluation(path: json_file.Path) -> Evaluation:
  """Reads an evaluation; a FormatError names the file, element and value."""
  data = json_file.read_json(path, EVALUATION)
  with json_file.errors_naming(path):
    return evaluation_from_json(data)


def save_evaluation(evaluation: Evaluation, path: json_file.Path) -> None:
  """Writes an evaluation file atomically; raises FormatError if it cannot."""
  json_file.write_json(path, evaluation_to_json(evaluation))


def evaluation_from_json(data: Mapping[str, Any]) -> Evaluation:
  """Converts a parsed file; a FormatError names the element and value."""
  values = {
    k: json_file.required(data, k, "evaluation") for k in _EVALUATION_KEYS
  }
  if not isinstance(values["feasible"], bool):
    raise FormatError(
      f"feasible: {shown(values['feasible'])} is not true or false"
    )
  if values["source"] not in _SOURCES:
    raise FormatError(
      f"source: {shown(values['source'])} is not one of {_SOURCES}"
    )
  step, number = values["step_time_us"], json_file.as_number
  return Evaluation(
    step_time_us=math.inf
    if step is None
    else number(step, "step_time_us", math.inf),
    feasible=values["feasible"],
    peak_memory_bytes=_numbers(values, "peak_memory_bytes"),
    busy_us=_numbers(values, "busy_us"),
    bytes_moved=number(values["bytes_moved"], "bytes_moved", math.inf),
    lower_bound_us=number(values["lower_bound_us"], "lower_bound_us", math.inf),
    source=values["source"],
    extra=json_file.unknown_keys(data, _EVALUATION_KEYS, "evaluation"),
  )


def _numbers(values: Mapping[str, Any], key: str) -> dict[str, float]:
  items = json_file.as_object(values[key], key).items()
  return {
    json_file.as_name(device, key): json_file.as_number(
      value, f"{key}[{shown(device)}]", math.inf
    )
    for device, value in items
  }


def evaluation_to_json(evaluation: Evaluation) -> dict[str, Any]:
  """Converts an evaluation to JSON.

  An infinite `step_time_us` (a failed measurement) becomes null because JSON
  has no infinity.
  """
  number = json_file.plain_number
  step = evaluation.step_time_us
  return {
    "format": EVALUATION,
    "step_time_us": number(step) if math.isfinite(step) else None,
    "feasible": evaluation.feasible,
    "peak_memory_bytes": {
      device: number(size)
      for device, size in evaluation.peak_memory_bytes.items()
    },
    "busy_us": {d: number(t) for d, t in evaluation.busy_us.items()},
    "bytes_moved": number(evaluation.bytes_moved),
    "lower_bound_us": number(evaluation.lower_bound_us),
    "source": evaluation.source,
    **evaluation.extra,
  }
