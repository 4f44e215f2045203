"""Timeline of a simulated step: devices, channels, critical path and memory.

Drawn with Matplotlib, without a display and without pyplot's global state.
"""

import io
import os
import pathlib
from typing import Any

import numpy as np

from tfplace.errors import FormatError, TfplaceError
from tfplace.formats.files import write_bytes
from tfplace.graph.placement import Placement
from tfplace.graph.quantities import (
  format_share,
  format_us,
  size_scale,
  time_scale,
)
from tfplace.report.op_colors import CRITICAL_COLOR, op_colors
from tfplace.report.rows import (
  DEVICE,
  Row,
  as_schedule,
  device_names,
  step_rows,
)
from tfplace.simulate import Schedule

try:
  from matplotlib.axes import Axes
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.legend_handler import HandlerTuple
  from matplotlib.patches import Patch
except ImportError as error:
  raise TfplaceError(
    f"a timeline needs the extra 'report' ({error}):"
    " pip install 'tfplace[report]'"
  ) from error

SUFFIXES = (".png", ".svg", ".pdf")
_LINK_HEIGHT = 0.5  # relative to a device's row


class Timeline(Figure):
  """Figure that notebooks show without pyplot."""

  def _repr_png_(self) -> bytes:
    return self.to_bytes("png", dpi=80)

  def to_bytes(self, kind: str, dpi: int) -> bytes:
    """Returns the content of a file of a `picture_kind`."""
    buffer = io.BytesIO()
    self.savefig(buffer, format=kind, dpi=dpi)
    return buffer.getvalue()


def save_timeline(
  step: Schedule | Placement, path: str | os.PathLike[str]
) -> Timeline:
  """Draws a step into a .png, .svg or .pdf file, atomically.

  Returns:
    The figure.

  Raises:
    FormatError: the suffix is not supported, or the file cannot be written.
  """
  kind = picture_kind(path)
  figure = draw_timeline(as_schedule(step))
  write_bytes(path, figure.to_bytes(kind, dpi=150))
  return figure


def picture_kind(path: str | os.PathLike[str]) -> str:
  """Returns "png", "svg" or "pdf" by the suffix, or raises FormatError."""
  suffix = pathlib.Path(path).suffix.lower()
  if suffix not in SUFFIXES:
    raise FormatError(
      f"{os.fspath(path)}: a timeline is one of {', '.join(SUFFIXES)},"
      f" not {suffix or 'without a suffix'!r}"
    )
  return suffix[1:]


def draw_timeline(schedule: Schedule) -> Timeline:
  """Draws the timeline as a Matplotlib figure."""
  rows = step_rows(schedule)
  heights = np.array([1.0 if r.kind == DEVICE else _LINK_HEIGHT for r in rows])
  height = 1.2 + 0.45 * float(heights.sum())
  figure = Timeline(figsize=(14, height + 3.0), layout="constrained")
  FigureCanvasAgg(figure)
  top, bottom = figure.subplots(
    2, 1, sharex=True, gridspec_kw={"height_ratios": [height, 2.4]}
  )
  _draw_rows(top, schedule, rows, heights)
  _draw_memory(bottom, schedule)
  problem = schedule.placement.problem
  bound = problem.lower_bound_us
  ratio = f", {schedule.step_time_us / bound:.3f} x bound" if bound else ""
  figure.suptitle(
    f"{problem.graph.name} on {problem.cluster.name}:"
    f" {format_us(schedule.step_time_us)}{ratio}",
    parse_math=False,
    fontsize=11,
  )
  return figure


def _draw_rows(
  axes: Axes, schedule: Schedule, rows: list[Row], heights: np.ndarray
) -> None:
  step_us, ops = schedule.step_time_us, op_colors(schedule)
  scale, unit = time_scale(step_us)
  tops, colors = np.cumsum(heights) - heights, np.array(ops.colors)
  labels, drawn = [], set()
  for row, top, height in zip(rows, tops, heights, strict=True):
    some = row.end_us > row.start_us
    kinds = ops.of_row(row)[some]
    drawn |= set(kinds.tolist())
    spans = np.stack((row.start_us[some], row.end_us[some]), axis=1)
    bottom, size = top + 0.08 * height, 0.72 * height
    _bars(axes, spans / scale, bottom, size, colors[kinds])
    bottom, size = top + 0.83 * height, 0.07
    _bars(axes, row.critical_us / scale, bottom, size, CRITICAL_COLOR)
    labels.append(f"{row.name} {format_share(row.busy_us, step_us)}")
  axes.set_yticks(tops + heights / 2, labels)
  for label in axes.get_yticklabels():
    label.set_parse_math(False)
  axes.set_xlim(0, max(step_us / scale, 1e-9))
  axes.set_ylim(float(heights.sum()), 0)
  axes.tick_params(axis="x", labelbottom=True)
  note = "; light: forward, dark: backward" if ops.is_microbatched else ""
  axes.set_xlabel(f"time, {unit} (percentages: busy{note})")
  # Kinds of equal names share an entry of the legend.
  patches: dict[str, list[Patch]] = {}
  for i in sorted(drawn):
    patches.setdefault(ops.legend[i], []).append(Patch(color=ops.colors[i]))
  patches["critical path"] = [Patch(color=CRITICAL_COLOR)]
  handles = [tuple(each) for each in patches.values()]
  pairs = {tuple: HandlerTuple(ndivide=None, pad=0.0)}
  _add_legend(axes, 6, handles=handles, labels=list(patches), handler_map=pairs)


def _bars(
  axes: Axes, spans: np.ndarray, bottom: float, height: float, color: Any
) -> None:
  """Draws [n, 2] spans; an outline keeps bars below a pixel visible."""
  if len(spans):
    ranges = np.stack((spans[:, 0], spans[:, 1] - spans[:, 0]), axis=1)
    colors = {"facecolor": color, "edgecolor": color}
    axes.broken_barh(ranges.tolist(), (bottom, height), lw=0.1, **colors)


def _draw_memory(axes: Axes, schedule: Schedule) -> None:
  scale, unit = time_scale(schedule.step_time_us)
  limits = schedule.placement.problem.cluster.memory_bytes
  peak = max(schedule.peak_memory_bytes.max(), 1.0)
  size, name = size_scale(peak)
  for d, (device, curve) in enumerate(
    zip(device_names(schedule), schedule.memory, strict=True)
  ):
    times = np.append(curve.time_us, schedule.step_time_us) / scale
    sizes = np.append(curve.num_bytes, curve.num_bytes[-1:]) / size
    color = f"C{d % 10}"
    axes.step(times, sizes, where="post", lw=1, color=color, label=device)
    if limits[d] <= 1.6 * peak:
      axes.axhline(limits[d] / size, ls="--", lw=0.8, color=color)
  axes.set_ylim(bottom=0)
  axes.set_ylabel(f"memory, {name}\n(dashed: capacity)")
  axes.set_xlabel(f"time, {unit}")
  _add_legend(axes, 8)


def _add_legend(axes: Axes, columns: int, **options: Any) -> None:
  """Adds a legend above the axes, without TeX in its labels."""
  legend = axes.legend(
    loc="lower left",
    bbox_to_anchor=(0, 1.0),
    ncols=columns,
    fontsize=8,
    frameon=False,
    **options,
  )
  for text in legend.get_texts():
    text.set_parse_math(False)
