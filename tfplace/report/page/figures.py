"""What all figures of a page share: colours, fonts, axes, tools, hovers.

The colours can be told apart with any kind of colour vision: the eight of M.
Okabe and K. Ito, "Color Universal Design" (2008). The yellow is darkened, since
it is drawn on white, and black is for the critical path.
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
_WIDE, _NARROW = 940, 430  # pixels; on less, the page scrolls sideways
# Pixels in a legend: of a character, of a glyph with its margins, of a row.
_LABEL_WIDTH, _GLYPH_WIDTH, _LEGEND_ROW = 7.0, 37.0, 28
INK, LIGHT, GRID = "#2B2F36", "#6B7280", "#E5E7EB"
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILLION, YELLOW, BLACK = "#56B4E9", "#D55E00", "#C9B800", "#1A1A1A"
GREY, PALE = "#8A8F98", "#C4C8CE"

TRANSFER = ORANGE
MESSAGE = VERMILLION
CRITICAL = BLACK
OTHER = PALE
OP_TYPES = (BLUE, SKY, GREEN, PINK, YELLOW)
_DEVICES = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILLION, YELLOW, GREY)
_DASHES = ("solid", "dashed", "dotted", "dotdash")


def device_color(index: int) -> str:
  """The colour of a device, the same in every picture of a page."""
  return _DEVICES[index % len(_DEVICES)]


def device_dash(index: int) -> str:
  """A line pattern that tells apart devices of one colour, and neighbours."""
  return _DASHES[(index // len(_DEVICES) + index // 4) % len(_DASHES)]


def new_figure(
  name: str,
  height: int,
  x_range: Range1d,
  y_range: Range1d,
  zooms: bool = True,
) -> Any:
  """An empty figure as wide as the page.

  Args:
    name: how tests and scripts find it.
    height: pixels.
    x_range: of values.
    y_range: of values.
    zooms: along its axis of time; False for a still picture.
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
    min_width=_WIDE if zooms else _NARROW,
    x_range=x_range,
    y_range=y_range,
    tools=tools,
    toolbar_location="above" if zooms else None,
    min_border_left=150 if zooms else 0,  # so that axes of time are aligned
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
  """Names instead of numbers on an axis, taken as they are: no TeX in them."""
  axis.ticker = FixedTicker(ticks=list(map(float, at)))
  # Keys are as JavaScript prints the numbers: 2, not 2.0.
  axis.major_label_overrides = {
    float(x): PlainText(text=name) for x, name in zip(at, names, strict=True)
  }


def hover(renderers: Sequence[Any], rows: Sequence[tuple[str, str]]) -> Any:
  """A tooltip with a line per pair of label and `@column`; text, not HTML."""
  return HoverTool(renderers=list(renderers), tooltips=list(rows))


def style_legend(plot: Any) -> None:
  """The legend above the axes, in as many rows as its labels need.

  The plot grows by the rows after the first.
  """
  legend = plot.legend
  if not legend:
    return
  labels = [item.label.value for item in legend[0].items]
  room = plot.min_width - plot.min_border_left - plot.min_border_right
  widest = max(map(len, labels)) * _LABEL_WIDTH + _GLYPH_WIDTH
  columns = max(1, min(len(labels), int(room / widest)))
  plot.height += _LEGEND_ROW * (math.ceil(len(labels) / columns) - 1)
  plot.add_layout(legend[0], "above")
  legend.location = "top_left"  # on a narrow window the right end is hidden
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
  """A range that nothing moves; from the larger down for rows, top first."""
  return Range1d(start=start, end=end)


def span(step_us: float, scale: float) -> Range1d:
  """The axis of time: the step and nothing beyond."""
  end = max(step_us / scale, 1e-9)
  return Range1d(start=0, end=end, bounds=(0, end))
