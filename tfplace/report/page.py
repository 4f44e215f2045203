"""HTML report of a placement in one file, without scripts or requests."""

import base64
import importlib.util
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from tfplace.errors import TfplaceError
from tfplace.formats.files import write_bytes
from tfplace.graph.evaluation import Result
from tfplace.graph.placement import Placement
from tfplace.report.explain import explain
from tfplace.report.explain.tables import explanation_tables
from tfplace.report.rows import as_schedule
from tfplace.report.table import escaped, html_table, rank, results_table
from tfplace.simulate import Schedule

SUFFIX = ".html"
_DPI = 110
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
  body {{ max-width: 1240px; margin: 28px auto; padding: 0 20px;
    font: 15px/1.5 system-ui, sans-serif; }}
  img {{ width: 100%; }}
  section {{ overflow-x: auto; }}
  th, td {{ padding: 4px 10px; white-space: nowrap; }}
  tr.best td {{ font-weight: bold; }}
</style>
</head>
<body>
<h1>{title}</h1>
<ul>
{sentences}
</ul>
<img src="data:image/png;base64,{picture}" alt="timeline and memory">
{tables}
</body>
</html>
"""


def check_report(path: str | os.PathLike[str]) -> None:
  """Raises TfplaceError if the suffix or the extra `report` is missing."""
  if pathlib.Path(path).suffix.lower() != SUFFIX:
    raise TfplaceError(f"{os.fspath(path)}: a report's name ends in {SUFFIX}")
  if importlib.util.find_spec("matplotlib") is None:
    raise TfplaceError(
      "an HTML report needs the extra 'report', and matplotlib cannot be found:"
      " pip install 'tfplace[report]'"
    )


def save_report(
  step: Schedule | Placement,
  path: str | os.PathLike[str],
  results: Sequence[Result] = (),
) -> None:
  """Writes a report of a placement, atomically.

  Args:
    results: results of placers on the same problem, for the table of placers;
      the result with this placement is marked.

  Raises:
    TfplaceError: the suffix is wrong, the extra `report` is not installed, or
      the file cannot be written.
  """
  check_report(path)
  write_bytes(path, _render(as_schedule(step), results).encode("utf-8"))


def _render(schedule: Schedule, results: Sequence[Result]) -> str:
  from tfplace.report.timeline import draw_timeline  # Needs Matplotlib.

  problem, explanation = schedule.placement.problem, explain(schedule)
  tables = [*explanation_tables(explanation)]
  if results:
    ranked, devices = sorted(results, key=rank), schedule.placement.devices
    same = (r for r in ranked if np.array_equal(r.placement.devices, devices))
    table = results_table(ranked, best=next(same, None))
    tables.insert(0, table._replace(title="Placers, simulated"))
  picture = base64.b64encode(draw_timeline(schedule).to_bytes("png", _DPI))
  return _PAGE.format(
    title=escaped(f"{problem.graph.name} on {problem.cluster.name}"),
    sentences="\n".join(
      f"<li>{escaped(sentence, 1000)}</li>" for sentence in explanation.summary
    ),
    picture=picture.decode(),
    tables="\n".join(
      f"<section><h2>{escaped(table.title)}</h2>{html_table(table)}</section>"
      for table in tables
    ),
  )
