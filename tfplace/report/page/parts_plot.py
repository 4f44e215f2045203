"""The critical path by device and link, and what each would gain."""

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource

from tfplace.report.explain import Explanation
from tfplace.report.page import figures
from tfplace.report.units import format_us, time_scale

MAX_ROWS = 10
_ROW = 28  # pixels
_KINDS = (
  ("needed next", "needed_us", figures.BLUE),
  ("in the way of what came next", "queue_us", figures.SKY),
  ("gaps and latency", "idle_us", figures.PALE),
)


def path_plot(explanation: Explanation) -> Any:
  """What the critical path is made of: a stacked bar per device and link."""
  parts = explanation.path.parts[:MAX_ROWS]
  step_us = explanation.schedule.step_time_us
  scale, unit = time_scale(step_us)
  longest = max((part.total_us for part in parts), default=1.0)
  names = [f"{part.kind} {part.name}" for part in parts]
  plot = _rows("path", names, 1.05 * longest / scale)
  left = [0.0] * len(parts)
  bars = []
  for label, field, color in _KINDS:
    times = [getattr(part, field) for part in parts]
    right = [a + us / scale for a, us in zip(left, times, strict=True)]
    bars.append(
      plot.hbar(
        y="y",
        left="left",
        right="right",
        height=0.7,
        source=ColumnDataSource(
          {
            "y": list(range(len(parts))),
            "left": left,
            "right": right,
            "where": names,
            "what": [label] * len(parts),
            "time": [format_us(us) for us in times],
          }
        ),
        fill_color=color,
        line_color=None,
        legend_label=label,
        name=label,
      )
    )
    left = right
  plot.xaxis.axis_label = f"time on the critical path, {unit}"
  rows = [("", "@where"), ("", "@what"), ("time", "@time")]
  plot.add_tools(figures.hover(bars, rows))
  figures.style_legend(plot)
  return plot


def gain_plot(explanation: Explanation) -> Any:
  """How much shorter the step were if each were twice as fast."""
  loads = explanation.loads[:MAX_ROWS]
  step_us = max(explanation.schedule.step_time_us, 1e-300)
  gains = [100 * load.gain_us / step_us for load in loads]
  names = [f"{load.kind} {load.name}" for load in loads]
  plot = _rows("gains", names, max(1.05 * max(gains, default=0.0), 2.0))
  bars = plot.hbar(
    y="y",
    left=0,
    right="gain",
    height=0.7,
    source=ColumnDataSource(
      {
        "y": list(range(len(loads))),
        "gain": gains,
        "where": names,
        "time": [format_us(x.if_twice_as_fast_us) for x in loads],
        "busy": [
          f"{100 * x.busy_us / step_us:.0f}% of the step" for x in loads
        ],
      }
    ),
    fill_color=figures.GREEN,
    line_color=None,
    name="gain",
  )
  plot.xaxis.axis_label = "step shorter if twice as fast, %"
  rows = [("", "@where"), ("busy", "@busy"), ("the step then", "@time")]
  plot.add_tools(figures.hover([bars], rows))
  return plot


def _rows(name: str, names: Sequence[str], right: float) -> Any:
  """A figure with a row per name, the first on top."""
  count = max(len(names), 1)
  plot = figures.new_figure(
    name,
    90 + _ROW * count,
    figures.between(0, right),
    figures.between(count - 0.5, -0.5),
    zooms=False,
  )
  labels = [figures.shorten(x, 30) for x in names]
  figures.name_ticks(plot.yaxis[0], range(len(names)), labels)
  plot.yaxis.major_tick_line_color = None
  return plot
