"""The page's text, tables and figures, put into its template."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
import markupsafe
import numpy as np
from bokeh.embed import components
from bokeh.resources import Resources

from tfplace.core.placement import Placement
from tfplace.core.protocols import Evaluation, Result
from tfplace.report.explain import Explanation
from tfplace.report.explain.words import summary
from tfplace.report.page import figures
from tfplace.report.page.layers_plot import MAX_ARCS, layers_plot
from tfplace.report.page.memory_plot import capacity_text, memory_plot
from tfplace.report.page.parts_plot import gain_plot, path_plot
from tfplace.report.page.timeline_plot import num_hidden_links, timeline_plot
from tfplace.report.table import BASELINE, rank
from tfplace.report.units import (
  device_names,
  format_bytes,
  format_us,
  time_scale,
)
from tfplace.simulate import Schedule

_TEMPLATE = pathlib.Path(__file__).with_name("page.html")


@dataclasses.dataclass(frozen=True)
class _Section:
  """One figure with its words."""

  id: str
  title: str
  note: str
  plot: Any
  div: str = ""


def render_page(
  explanation: Explanation, results: Sequence[Result], placement: Placement
) -> str:
  """The page as HTML.

  Args:
    explanation: of the placement.
    results: rows of the table of placers.
    placement: marks its row.
  """
  schedule = explanation.schedule
  problem = schedule.placement.problem
  wide, narrow = _wide(schedule), _narrow(explanation)
  plots = {section.id: section.plot for section in (*wide, *narrow)}
  script, divs = components(plots)
  environment = jinja2.Environment(
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
  return template.render(
    title=f"{problem.graph.name} on {problem.cluster.name}",
    subtitle=_subtitle(schedule),
    tiles=_tiles(explanation, results),
    sentences=summary(explanation),
    placers=_placers(results, placement),
    wide=[_with_div(section, divs) for section in wide],
    narrow=[_with_div(section, divs) for section in narrow],
    hardware=_hardware(explanation),
    footer="Made by tfplace; everything is in this file. Drag or scroll on a"
    " picture of time to zoom, click a legend to hide what it names.",
    bokeh_js=markupsafe.Markup(_scripts()),
    bokeh_script=markupsafe.Markup(script),
  )


def _scripts() -> str:
  """Bokeh's JavaScript, without the parts that the page does not use."""
  return Resources(mode="inline", components=["bokeh"]).render_js()


def _with_div(section: _Section, divs: dict[str, str]) -> _Section:
  return dataclasses.replace(section, div=markupsafe.Markup(divs[section.id]))


def _wide(schedule: Schedule) -> list[_Section]:
  scale, unit = time_scale(schedule.step_time_us)
  x_range = figures.span(schedule.step_time_us, scale)
  timeline = timeline_plot(schedule, x_range, scale)
  memory = memory_plot(schedule, x_range, scale)
  for plot in (timeline, memory):
    plot.xaxis.axis_label = f"time, {unit}"
  hidden = num_hidden_links(schedule)
  return [
    _Section(
      "timeline",
      "Timeline of the step",
      "A row per device and per link that sends, with the part of the step for"
      " which it is busy. Short ops share a bar, as high as it is busy."
      + (f" {hidden} links that send less are not drawn." if hidden else ""),
      timeline,
    ),
    _Section(
      "memory",
      "Memory over the step",
      f"{capacity_text(schedule)} The axis of time is that of the timeline.",
      memory,
    ),
    _Section(
      "layers",
      "The graph by layer and device",
      "A column per layer, or block of layers, in the order of the forward"
      " pass; the area of a disc is the time that a device spends on it,"
      " forward and backward. Lines are traffic between devices, in the colour"
      f" of the sender, the {MAX_ARCS} heaviest at most.",
      layers_plot(schedule),
    ),
  ]


def _narrow(explanation: Explanation) -> list[_Section]:
  return [
    _Section(
      "path",
      "What the critical path is made of",
      "The chain of ops, transfers and waits that ends with the step.",
      path_plot(explanation),
    ),
    _Section(
      "gains",
      "What would help",
      "How much shorter the step were if one device or link were twice as"
      " fast, all else and the order being equal.",
      gain_plot(explanation),
    ),
  ]


def _subtitle(schedule: Schedule) -> str:
  problem = schedule.placement.problem
  kinds: dict[str, int] = {}
  for device in problem.cluster.devices:
    kinds[device.kind] = kinds.get(device.kind, 0) + 1
  devices = ", ".join(f"{n} {kind}" for kind, n in kinds.items())
  return (
    f"{problem.graph.num_ops:,} ops, {problem.graph.num_edges:,} edges;"
    f" {devices}; one step, simulated"
  )


def _tiles(
  explanation: Explanation, results: Sequence[Result]
) -> list[dict[str, str]]:
  schedule = explanation.schedule
  step_us = schedule.step_time_us
  tiles = [{"value": format_us(step_us), "text": "step time"}]
  single = [r.evaluation for r in results if r.strategy == BASELINE]
  if single and step_us > 0:
    ratio = single[0].step_time_us / step_us
    tiles.append(
      {"value": f"{ratio:.2f}x", "text": "as fast as one device alone"}
    )
  if explanation.ratio_to_bound is not None:
    times = f"{explanation.ratio_to_bound:.2f}x"
    tiles.append({"value": times, "text": "the proven lower bound"})
  at = int(schedule.busy_us.argmax())
  busy = 100 * float(schedule.busy_us[at]) / max(step_us, 1e-300)
  name = device_names(schedule)[at]
  tiles.append({"value": f"{busy:.0f}%", "text": f"busiest device, {name}"})
  fullest = int(schedule.peak_memory_bytes.argmax())
  peak = format_bytes(float(schedule.peak_memory_bytes[fullest]))
  name = device_names(schedule)[fullest]
  tiles.append({"value": peak, "text": f"highest memory, {name}"})
  moved = format_bytes(float(schedule.transfers.num_bytes.sum()))
  tiles.append({"value": moved, "text": "sent between devices"})
  return tiles


def _placers(
  results: Sequence[Result], placement: Placement
) -> list[dict[str, Any]]:
  """A row per result, the fastest that fits first."""
  rows = []
  ranked = sorted(results, key=rank)
  ran = [r.evaluation.step_time_us for r in ranked if r.evaluation.feasible]
  best_us = min(ran, default=np.inf)
  # The slowest would flatten the others: bars end at five times the best.
  longest = min(max(ran, default=1.0), 5 * best_us)
  for result in ranked:
    found = result.evaluation
    step, bound = found.step_time_us, found.ratio_to_bound
    rows.append(
      {
        "name": result.strategy,
        "step": format_us(step),
        "width": f"{100 * min(1.0, step / max(longest, 1e-300)):.1f}",
        "ratio": f"{step / best_us:.2f}" if 0 < best_us < np.inf else "-",
        "bound": "-" if bound is None else f"{bound:.2f}",
        "memory": _fullest(found),
        "seconds": f"{result.seconds:.2f}",
        "is_best": False,
      }
    )
  for row, result in zip(rows, ranked, strict=True):
    if np.array_equal(result.placement.devices, placement.devices):
      row["is_best"] = True
      break
  return rows


def _fullest(evaluation: Evaluation) -> str:
  peak = format_bytes(max(evaluation.peak_memory_bytes.values(), default=0.0))
  return peak if evaluation.feasible else f"{peak}, does not fit"


def _hardware(explanation: Explanation) -> list[dict[str, str]]:
  return [
    {
      "name": tried.name,
      "same": format_us(tried.same_order_us),
      "anew": format_us(tried.step_time_us),
    }
    for tried in explanation.what_if
  ]
