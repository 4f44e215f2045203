"""`tfplace.placement.v1`: placements as files."""

from typing import Any

from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import FormatError, shown
from tfplace.formats import json_file

FORMAT = "tfplace.placement.v1"
_KEYS = frozenset({"format", "graph", "assignments"})


def load_placement(path: json_file.Path, problem: Problem) -> Placement:
  """Reads a placement of `problem`.

  Raises:
    FormatError: names the file, the element and the value.
    PlacementError: the placement is of another graph or is not allowed; names
      the file, the op and the device.
  """
  data = json_file.read_json(path, FORMAT)
  with json_file.errors_naming(path):
    name = json_file.required(data, "graph", "placement")
    if name != problem.graph.name:
      raise FormatError(
        f"a placement of graph {shown(name)}, not of {problem.graph.name!r}"
      )
    assignments = json_file.as_object(
      json_file.required(data, "assignments", "placement"), "assignments"
    )
    for op, device in assignments.items():
      json_file.as_name(device, f"assignments[{shown(op)}]")
    extra = json_file.unknown_keys(data, _KEYS, "placement")
    return Placement.from_assignments(problem, assignments, extra)


def save_placement(placement: Placement, path: json_file.Path) -> None:
  """Writes a placement file; an interrupted write leaves the old one.

  Raises:
    FormatError: the file cannot be written.
  """
  data: dict[str, Any] = {
    "format": FORMAT,
    "graph": placement.problem.graph.name,
    "assignments": placement.assignments,
    **placement.extra,
  }
  json_file.write_json(path, data)
