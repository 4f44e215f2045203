"""A placement as one self-contained HTML file, drawn with Bokeh.

Bokeh's JavaScript (1.3 MB) is in the file, and the page's own policy forbids
it any request. Bokeh draws on a canvas, which is fast with thousands of bars,
and is a quarter of the size of Plotly's scripts (4.8 MB); Vega would need a
network.
"""

import importlib.util
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfplace.core.placement import Placement
from tfplace.errors import TfplaceError
from tfplace.formats.files import write_bytes
from tfplace.report.explain import Explanation, explain

if TYPE_CHECKING:
  from tfplace.core.protocols import Result

SUFFIX = ".html"
_NEEDED = ("bokeh", "jinja2")


def check_installed() -> None:
  """Checks that the extra `report` is installed; imports nothing.

  Raises:
    TfplaceError: it is not; says how to install it.
  """
  missing = [n for n in _NEEDED if importlib.util.find_spec(n) is None]
  if missing:
    raise TfplaceError(
      f"an HTML report needs the extra 'report', and {' and '.join(missing)}"
      " cannot be found: pip install 'tfplace[report]'"
    )


def check_suffix(path: str | os.PathLike[str]) -> None:
  """Checks the name of a report to write.

  Raises:
    TfplaceError: another suffix than `SUFFIX`.
  """
  if pathlib.Path(path).suffix.lower() != SUFFIX:
    raise TfplaceError(f"{os.fspath(path)}: a report's name ends in {SUFFIX}")


def save_report(
  placement: Placement,
  path: str | os.PathLike[str],
  results: "Sequence[Result]" = (),
  explanation: Explanation | None = None,
) -> None:
  """Writes a page about a placement, whole or not at all.

  Args:
    placement: what to look at.
    path: the .html file to write.
    results: of placers on the same problem, for the table of placers; the
      one whose placement this is is marked.
    explanation: of the placement, where there is one; else it is made.

  Raises:
    TfplaceError: another suffix, the extra `report` is not installed, or the
      file cannot be written.
  """
  check_suffix(path)
  check_installed()
  from tfplace.report.page import render  # imports Bokeh

  explanation = explanation or explain(placement)
  page = render.render_page(explanation, results, placement)
  write_bytes(path, page.encode("utf-8"))
