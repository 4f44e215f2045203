"""A picture of one simulated step: what each device and channel does when,
the critical path, and the memory in use. Drawn without a display and without
pyplot's global state.
"""

import io
import os
import pathlib

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tfplace.core.placement import Placement
from tfplace.errors import FormatError
from tfplace.formats.files import write_bytes
from tfplace.report.units import (
  as_schedule,
  channel_names,
  device_names,
  format_us,
  time_scale,
)
from tfplace.simulate import Schedule

SUFFIXES = (".png", ".svg", ".pdf")
# Op types with a colour of their own: Tableau's ten less its red, orange and
# grey, which mean something else here, and three more.
TYPE_COLORS = (
  *("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#bcbd22"),
  *("#17becf", "#17406b", "#a6d854"),
)
OTHER_COLOR = "#b5b5b5"
TRANSFER_COLOR = "#d98200"
CRITICAL_COLOR = "#d40000"
_CHANNEL_HEIGHT = 0.5  # of a device's row


def save_timeline(
  step: Schedule | Placement, path: str | os.PathLike[str]
) -> None:
  """Draws a step into a .png, .svg or .pdf file, whole or not at all.

  Args:
    step: what was simulated, or is to be.
    path: the file to write.

  Raises:
    FormatError: another suffix, or the file cannot be written.
  """
  kind = picture_kind(path)
  buffer = io.BytesIO()
  figure = draw_timeline(as_schedule(step))
  figure.savefig(buffer, format=kind, dpi=150)
  write_bytes(path, buffer.getvalue())


def picture_kind(path: str | os.PathLike[str]) -> str:
  """ "png", "svg" or "pdf", by the suffix of a file to write.

  Raises:
    FormatError: another suffix.
  """
  suffix = pathlib.Path(path).suffix.lower()
  if suffix not in SUFFIXES:
    raise FormatError(
      f"{os.fspath(path)}: a timeline is one of {', '.join(SUFFIXES)},"
      f" not {suffix or 'without a suffix'!r}"
    )
  return suffix[1:]


def draw_timeline(schedule: Schedule) -> Figure:
  """The picture as a Matplotlib figure."""
  rows = len(schedule.memory) + _CHANNEL_HEIGHT * len(_used_channels(schedule))
  height = 1.2 + 0.45 * rows
  figure = Figure(figsize=(14, height + 3.0), layout="constrained")
  FigureCanvasAgg(figure)
  top, bottom = figure.subplots(
    2, 1, sharex=True, gridspec_kw={"height_ratios": [height, 2.4]}
  )
  _draw_tracks(top, schedule)
  _draw_memory(bottom, schedule)
  figure.suptitle(_title(schedule), parse_math=False, fontsize=11)
  return figure


def _title(schedule: Schedule) -> str:
  problem = schedule.placement.problem
  bound = problem.lower_bound_us
  ratio = f", {schedule.step_time_us / bound:.3f} x bound" if bound else ""
  return (
    f"{problem.graph.name} on {problem.cluster.name}:"
    f" {format_us(schedule.step_time_us)}{ratio}"
  )


def _used_channels(schedule: Schedule) -> list[int]:
  return np.unique(schedule.transfers.channel).tolist()


def _draw_tracks(axes: Axes, schedule: Schedule) -> None:
  """Devices above, channels that are used below them."""
  scale, unit = time_scale(schedule.step_time_us)
  devices, channels = device_names(schedule), _used_channels(schedule)
  all_names = channel_names(schedule)
  heights = [1.0] * len(devices) + [_CHANNEL_HEIGHT] * len(channels)
  tops = np.concatenate(([0.0], np.cumsum(heights)[:-1]))
  middles = tops + np.array(heights) / 2
  _draw_ops(axes, schedule, scale)
  _draw_transfers(axes, schedule, scale, tops[len(devices) :], channels)
  _draw_critical_path(axes, schedule, scale, tops[len(devices) :], channels)
  busy = schedule.busy_us / max(schedule.step_time_us, 1e-300)
  labels = [f"{n} {100 * b:.0f}%" for n, b in zip(devices, busy, strict=True)]
  axes.set_yticks(middles, labels + [all_names[c] for c in channels])
  for label in axes.get_yticklabels():
    label.set_parse_math(False)
  axes.set_xlim(0, max(schedule.step_time_us / scale, 1e-9))
  axes.set_ylim(tops[-1] + heights[-1], 0)
  axes.tick_params(axis="x", labelbottom=True)
  axes.set_xlabel(f"time, {unit} (percentages: device busy)")


def _draw_ops(axes: Axes, schedule: Schedule, scale: float) -> None:
  start, end = schedule.op_start_us / scale, schedule.op_end_us / scale
  types = np.array(schedule.placement.problem.graph.types, object)
  total: dict[str, float] = {}
  for kind, time in zip(types, end - start, strict=True):
    total[kind] = total.get(kind, 0.0) + time
  ranked = sorted(total, key=lambda kind: -total[kind])
  colors = dict(zip(ranked, TYPE_COLORS, strict=False))
  row = schedule.placement.devices
  handles = []
  other = np.array([kind not in colors for kind in types], bool)
  for kind, color in [*colors.items(), (None, OTHER_COLOR)]:
    chosen = other if kind is None else np.asarray(types == kind, bool)
    chosen = chosen & (end > start)
    if chosen.any():
      _bars(axes, start[chosen], end[chosen], row[chosen] + 0.08, 0.72, color)
      handles.append(Patch(color=color, label=kind or "other types"))
  handles.append(Patch(color=TRANSFER_COLOR, label="transfer"))
  handles.append(Patch(color=CRITICAL_COLOR, label="critical path"))
  legend = axes.legend(
    handles=handles,
    loc="lower left",
    bbox_to_anchor=(0, 1.0),
    ncols=6,
    fontsize=8,
    frameon=False,
  )
  for text in legend.get_texts():
    text.set_parse_math(False)


def _draw_transfers(
  axes: Axes,
  schedule: Schedule,
  scale: float,
  tops: np.ndarray,
  channels: list[int],
) -> None:
  moves = schedule.transfers
  row = np.searchsorted(channels, moves.channel)
  if len(moves):
    bottom = tops[row] + 0.06
    start, sent = moves.start_us / scale, moves.sent_us / scale
    _bars(axes, start, sent, bottom, 0.3, TRANSFER_COLOR)


def _draw_critical_path(
  axes: Axes,
  schedule: Schedule,
  scale: float,
  tops: np.ndarray,
  channels: list[int],
) -> None:
  """A line under each op and transfer of the path."""
  row = dict(zip(channels, tops, strict=True))
  lines = []
  for segment in schedule.critical_path:
    if segment.kind == "op":
      y = float(schedule.placement.devices[segment.index]) + 0.83
    else:
      y = row[int(schedule.transfers.channel[segment.index])] + 0.38
    lines.append((segment.start_us / scale, segment.end_us / scale, y))
  if lines:
    start, end, bottom = np.array(lines).T
    _bars(axes, start, end, bottom, 0.07, CRITICAL_COLOR)


def _bars(
  axes: Axes,
  start: np.ndarray,
  end: np.ndarray,
  bottom: np.ndarray,
  height: float,
  color: str,
) -> None:
  """Rectangles as one collection: tens of thousands draw in a moment."""
  corners = [
    np.stack([x, y], axis=1)
    for x, y in (
      (start, bottom),
      (end, bottom),
      (end, bottom + height),
      (start, bottom + height),
    )
  ]
  # A hairline keeps an op visible that is narrower than a pixel.
  axes.add_collection(
    PolyCollection(
      list(np.stack(corners, axis=1)), facecolor=color, edgecolor=color, lw=0.1
    ),
    autolim=False,
  )


def _draw_memory(axes: Axes, schedule: Schedule) -> None:
  scale, unit = time_scale(schedule.step_time_us)
  limits = schedule.placement.problem.cluster.memory_bytes
  peak = max(schedule.peak_memory_bytes.max(), 1.0)
  size, name = (2.0**30, "GiB") if peak >= 2.0**29 else (2.0**20, "MiB")
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
  legend = axes.legend(
    loc="lower left",
    bbox_to_anchor=(0, 1.0),
    ncols=8,
    fontsize=8,
    frameon=False,
  )
  for text in legend.get_texts():
    text.set_parse_math(False)
