"""Table of what a new user finds, alone or beside an earlier revision."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.lib import report

_PARTS = ("plan", "plan_auto", "place", "shell")
_HEADS = {
  "plan": "`plan_model`",
  "plan_auto": '`microbatches="auto"`',
  "place": "`place_model` and `fit`",
  "shell": "`tfplace-place`",
}
Rows = Mapping[str, Mapping[str, Any]]


def markdown(rows: Rows, before: Rows | None = None) -> str:
  """Returns seconds of each part by model, sums, and the errors.

  Args:
    rows: part by name, by model.
    before: rows of an earlier revision, shown before an arrow.
  """
  both = [rows] if before is None else [before, rows]
  lines = []
  for name in rows:
    cells = [
      " → ".join(_cell(side.get(name, {}), part) for side in both)
      for part in _PARTS
    ]
    load = " → ".join(_load(side.get(name, {})) for side in both)
    ops, difference = _ops(rows[name]), _difference(rows[name])
    lines.append([name, ops, *cells, difference, load])
  heads = [
    "model",
    "ops",
    *(_HEADS[part] for part in _PARTS),
    "losses differ",
    "load",
  ]
  texts = [
    "Seconds of each call of a new user, `-` where it was refused. The shell's"
    " second figure is of the command with the shapes that its error shows;"
    " load is the host's load average.",
    report.markdown(heads, lines),
    *(
      _summary(side, label)
      for side, label in zip(both, _labels(both), strict=True)
    ),
  ]
  return "\n\n".join([*texts, _errors(rows)])


def _labels(both: list[Rows]) -> list[str]:
  return [""] if len(both) == 1 else ["Before: ", "After: "]


def _cell(row: Mapping[str, Any], name: str) -> str:
  if name not in row:
    return ""
  part, again = row[name], row.get(f"{name}_with_shapes")
  said = f"{part['wall_s']:.0f}" if part["works"] else "-"
  if again is None:
    return said
  return f"{said}, {again['wall_s']:.0f}" if again["works"] else f"{said}, -"


def _load(row: Mapping[str, Any]) -> str:
  """Returns the load average of the host, at the start and the end."""
  return " to ".join(f"{value:.0f}" for value in row.get("load", ()))


def _ops(row: Mapping[str, Any]) -> str:
  found = [part["ops"] for part in parts(row) if "ops" in part]
  return f"{found[0]:,}" if found else ""


def _difference(row: Mapping[str, Any]) -> str:
  found = row.get("place", {}).get("difference")
  return "" if found is None else f"{found:.1e}"


def parts(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
  """Returns the attempts of a row."""
  return [part for part in row.values() if isinstance(part, Mapping)]


def _summary(rows: Rows, label: str) -> str:
  said = []
  for name in _PARTS:
    found = [row[name] for row in rows.values() if name in row]
    worked = [part["wall_s"] for part in found if part["works"]]
    median = f", median {statistics.median(worked):.0f} s" if worked else ""
    said.append(f"{_HEADS[name]} {len(worked)} of {len(rows)}{median}")
  return f"{label}{'; '.join(said)}."


def _errors(rows: Rows) -> str:
  lines = [
    f"- {name}, {key}: {part['error']}"
    for name, row in rows.items()
    for key, part in row.items()
    if isinstance(part, Mapping) and not part["works"]
  ]
  return "\n".join(["What was refused:", "", *lines]) if lines else ""
