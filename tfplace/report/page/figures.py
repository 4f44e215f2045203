"""Common style of the figures of a page: colors, fonts, axes, tools, tooltips.

The colors are distinguishable with any color vision: the eight of M. Okabe and
K. Ito, "Color Universal Design" (2008), with a darker yellow for white
backgrounds. Black is reserved for the critical path.
"""

import math
from collections.abc import Sequence
from typing import Any

from bokeh.models import (
  BoxZoomTool,
  FixedTicker,
  HoverTool,
  PanTool,
  PlainText,
  Range1d,
  ResetTool,
  SaveTool,
  WheelZoomTool,
)
from bokeh.plotting import figure

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
INK, LIGHT, GRID = "#2B2F36", "#6B7280", "#E5E7EB"
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW, BLACK = "#56B4E9", "#D55E00", "#C9B800", "#1A1A1A"
GREY, PALE = "#8A8F98", "#C4C8CE"

TRANSFER = ORANGE
MESSAGE = VERMILLION
CRITICAL = BLACK
OTHER = PALE
OP_TYPES = (BLUE, SKY, GREEN, PINK, YELLOW)
_WIDTH = 940  # of the timeline, in pixels; the page scrolls if it is narrower
_NARROW_WIDTH = 430  # of figures without zoom
_LETTER = 7.0  # of a legend
_GLYPH = 37.0  # before a label of a legend
_LEGEND_ROW = 28
_DEVICES = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILLION, YELLOW, GREY)
_DASHES = ("solid", "dashed", "dotted", "dotdash")


def device_color(index: int) -> str:
  """Returns the color of a device, the same in every figure of a page."""
  return _DEVICES[index % len(_DEVICES)]


def device_dash(index: int) -> str:
  """Returns a line pattern that separates devices of one color."""
  return _DASHES[(index // len(_DEVICES) + index // 4) % len(_DASHES)]


def new_figure(
  name: str,
  height: int,
  x_range: Range1d,
  y_range: Range1d,
  zooms: bool = True,
) -> Any:
  """Creates an empty figure with the page's style.

  Args:
    height: height in pixels.
    zooms: whether the time axis can be zoomed; otherwise the figure is static.
  """
  tools: list[Any] = [SaveTool()]
  if zooms:
    tools = [
      BoxZoomTool(dimensions="width"),
      PanTool(dimensions="width"),
      WheelZoomTool(dimensions="width"),
      ResetTool(),
      *tools,
    ]
  plot = figure(
    name=name,
    height=height,
    sizing_mode="stretch_width",
    min_width=_WIDTH if zooms else _NARROW_WIDTH,
    x_range=x_range,
    y_range=y_range,
    tools=tools,
    toolbar_location="above" if zooms else None,
    min_border_left=150 if zooms else 0,  # aligns the time axes
    min_border_right=16,
    outline_line_color=None,
  )
  if zooms:
    plot.toolbar.active_drag = tools[0]
  plot.toolbar.logo = None
  plot.toolbar.autohide = False
  plot.background_fill_color = None
  plot.border_fill_color = None
  for axis in (*plot.xaxis, *plot.yaxis):
    axis.axis_label_text_font = FONT
    axis.axis_label_text_font_style = "normal"
    axis.axis_label_text_font_size = "13px"
    axis.axis_label_text_color = LIGHT
    axis.major_label_text_font = FONT
    axis.major_label_text_font_size = "12px"
    axis.major_label_text_color = INK
    axis.axis_line_color = GRID
    axis.major_tick_line_color = GRID
    axis.minor_tick_line_color = None
  plot.xgrid.grid_line_color = GRID
  plot.ygrid.grid_line_color = None
  return plot


def name_ticks(axis: Any, at: Sequence[float], names: Sequence[str]) -> None:
  """Labels an axis with names, without TeX."""
  axis.ticker = FixedTicker(ticks=list(map(float, at)))
  # Keys are formatted as in JavaScript: 2, not 2.0.
  axis.major_label_overrides = {
    float(x): PlainText(text=name) for x, name in zip(at, names, strict=True)
  }


def hover(renderers: Sequence[Any], rows: Sequence[tuple[str, str]]) -> Any:
  """Creates a tooltip of (label, `@column`) lines, as text, not HTML."""
  return HoverTool(renderers=list(renderers), tooltips=list(rows))


def style_legend(plot: Any) -> None:
  """Moves the legend above the axes and grows the plot by additional rows."""
  legend = plot.legend
  if not legend:
    return
  labels = [item.label.value for item in legend[0].items]
  room = plot.min_width - plot.min_border_left - plot.min_border_right
  widest = max(map(len, labels)) * _LETTER + _GLYPH
  columns = max(1, min(len(labels), int(room / widest)))
  plot.height += _LEGEND_ROW * (math.ceil(len(labels) / columns) - 1)
  plot.add_layout(legend[0], "above")
  legend.location = "top_left"  # narrow windows hide the right end
  legend.orientation = "horizontal"
  legend.ncols = columns
  legend.label_text_font = FONT
  legend.label_text_font_size = "12px"
  legend.label_text_color = INK
  legend.border_line_color = None
  legend.background_fill_color = None
  legend.padding = 0
  legend.margin = 4
  legend.spacing = 14
  legend.label_standoff = 5
  legend.glyph_height = 14
  legend.glyph_width = 18
  legend.click_policy = "hide"


def between(start: float, end: float) -> Range1d:
  """Creates a fixed range; descending for rows, top first."""
  return Range1d(start=start, end=end)


def span(step_us: float, scale: float) -> Range1d:
  """Creates the range of the time axis, which is exactly the step."""
  end = max(step_us / scale, 1e-9)
  return Range1d(start=0, end=end, bounds=(0, end))
