"""Files of placements, evaluations and estimates."""

from collections.abc import Mapping
from typing import Any

from tfplace.errors import FormatError, shown
from tfplace.formats import codec, json_file
from tfplace.graph.estimate import Estimate
from tfplace.graph.evaluation import Evaluation
from tfplace.graph.order import ARRIVAL, ORDERS, order_to_json
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem

PLACEMENT = "tfplace.placement.v1"
EVALUATION = "tfplace.evaluation.v1"
ESTIMATE = "tfplace.estimate.v1"
_SOURCES = ("simulated", "measured")
_PLACEMENT_KEYS = frozenset({"format", "graph", "assignments", "order"})


def load_assignments(path: json_file.Path) -> dict[str, str]:
  """Reads op name -> device name of a placement file of any graph.

  Raises:
    FormatError: the file is invalid; names the file, element and value.
  """
  data = json_file.read_json(path, PLACEMENT)
  with json_file.errors_naming(path):
    read_order(data)
    return read_assignments(data)


def read_op_order(data: Mapping[str, Any]) -> list[str]:
  """Returns the op order of a parsed file; empty without one."""
  ops = data.get("op_order", [])
  if not isinstance(ops, list) or not all(isinstance(op, str) for op in ops):
    raise FormatError(
      f"op_order: {shown(ops)} is no list of the names of the ops in the order"
      " in which devices run them"
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
    assignments = read_assignments(data)
    extra = json_file.unknown_keys(data, _PLACEMENT_KEYS, "placement")
    ordered = problem.in_order(read_order(data))
    return Placement.from_assignments(ordered, assignments, extra)


def read_assignments(data: Mapping[str, Any]) -> dict[str, str]:
  """Returns op name -> device name of a parsed file."""
  found = json_file.required(data, "assignments", "placement")
  assignments = json_file.as_object(found, "assignments")
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
      # Units and, for models that are fused again, their members.
      "assignments": {**placement.assignments, **placement.traced_assignments},
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
  evaluation = codec.from_json(Evaluation, data, "evaluation")
  if evaluation.source not in _SOURCES:
    raise FormatError(
      f"source: {shown(evaluation.source)} is not one of {_SOURCES}"
    )
  return evaluation


def evaluation_to_json(evaluation: Evaluation) -> dict[str, Any]:
  """Converts an evaluation to JSON; the step of a failed one becomes null."""
  return {"format": EVALUATION, **codec.to_json(evaluation)}


def save_estimate(estimate: Estimate, path: json_file.Path) -> None:
  """Writes an estimate atomically; raises FormatError if it cannot."""
  json_file.write_json(path, estimate_to_json(estimate))


def estimate_to_json(estimate: Estimate) -> dict[str, Any]:
  """Converts an estimate to JSON; unlimited memory becomes null."""
  return {"format": ESTIMATE, **codec.to_json(estimate)}
