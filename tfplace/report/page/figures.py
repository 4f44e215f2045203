"""Common style of the figures of a page: fonts, axes, tools, tooltips."""

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

from tfplace.report import op_colors as colors

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
INK, LIGHT, GRID = "#2B2F36", "#6B7280", "#E5E7EB"
_WIDTH = 940  # of the timeline, in pixels; the page scrolls if it is narrower
_LETTER = 7.0  # of a legend
_GLYPH = 37.0  # before a label of a legend
_LEGEND_ROW = 28
_DEVICES = (
  *(colors.BLUE, colors.ORANGE, colors.GREEN, colors.PINK),
  *(colors.SKY, colors.VERMILLION, colors.YELLOW, "#8a8f98"),
)
_DASHES = ("solid", "dashed", "dotted", "dotdash")


def device_color(index: int) -> str:
  """Returns the color of a device, the same in every figure of a page."""
  return _DEVICES[index % len(_DEVICES)]


def device_dash(index: int) -> str:
  """Returns a line pattern that separates devices of one color."""
  return _DASHES[(index // len(_DEVICES) + index // 4) % len(_DASHES)]


def new_figure(
  name: str, height: int, x_range: Range1d, y_range: Range1d, zooms: bool = True
) -> Any:
  """Creates an empty figure with the page's style.

  Args:
    height: height in pixels.
    zooms: whether the time axis can be zoomed; otherwise the figure is static.
  """
  tools: list[Any] = [SaveTool()]
  if zooms:
    kinds = (BoxZoomTool, PanTool, WheelZoomTool)
    tools = [*(kind(dimensions="width") for kind in kinds), ResetTool(), *tools]
  plot = figure(
    name=name,
    height=height,
    sizing_mode="stretch_width",
    min_width=_WIDTH,
    x_range=x_range,
    y_range=y_range,
    tools=tools,
    active_drag=tools[0] if zooms else None,
    toolbar_location="above" if zooms else None,
    min_border_left=150,  # aligns the time axes
    min_border_right=16,
    outline_line_color=None,
    background_fill_color=None,
    border_fill_color=None,
  )
  plot.toolbar.logo = None
  for axis in (*plot.xaxis, *plot.yaxis):
    axis.update(
      axis_label_text_font=FONT,
      axis_label_text_font_style="normal",
      axis_label_text_font_size="13px",
      axis_label_text_color=LIGHT,
      major_label_text_font=FONT,
      major_label_text_font_size="12px",
      major_label_text_color=INK,
      axis_line_color=GRID,
      major_tick_line_color=GRID,
      minor_tick_line_color=None,
    )
  plot.xgrid.grid_line_color = GRID
  plot.ygrid.grid_line_color = None
  return plot


def name_ticks(axis: Any, at: Sequence[float], names: Sequence[str]) -> None:
  """Labels an axis with names, without TeX."""
  axis.ticker = FixedTicker(ticks=list(map(float, at)))
  axis.major_tick_line_color = None
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
  legend[0].update(
    location="top_left",  # narrow windows hide the right end
    orientation="horizontal",
    ncols=columns,
    label_text_font=FONT,
    label_text_font_size="12px",
    label_text_color=INK,
    border_line_color=None,
    background_fill_color=None,
    padding=0,
    margin=4,
    spacing=14,
    label_standoff=5,
    glyph_height=14,
    glyph_width=18,
    click_policy="hide",
  )


def between(start: float, end: float) -> Range1d:
  """Creates a fixed range; descending for rows, top first."""
  return Range1d(start=start, end=end)


def span(step_us: float, scale: float) -> Range1d:
  """Creates the range of the time axis, which is exactly the step."""
  end = max(step_us / scale, 1e-9)
  return Range1d(start=0, end=end, bounds=(0, end))
