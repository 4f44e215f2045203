"""Colors of ops in pictures of a step, by microbatch or by op type."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.core import phases
from tfplace.core.op_graph import OpGraph
from tfplace.report.rows import compute_end_us
from tfplace.simulate import Schedule

# Colors of op types: Tableau's ten without red, orange and gray, which have
# other meanings in pictures, and three more.
TYPE_COLORS = (
  *("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2", "#bcbd22"),
  *("#17becf", "#17406b", "#a6d854"),
)
OTHER_COLOR = "#b5b5b5"
MESSAGE_COLOR = "#f2c27f"
MAX_MICROBATCHES = 12  # number of colors; beyond that, neighbors share one
# Lightness grows from purple to yellow, as in Viridis (S. van der Walt and N.
# Smith, 2015), so the order is visible with any color vision. The start is
# lighter and the scale has more blue, so neighbors differ more.
_ANCHORS = ("#6a2c91", "#3f5fc0", "#1f93a8", "#2fb673", "#95c93d", "#e3c71c")
_LIGHTER = 0.55  # fraction of the way to white


@dataclasses.dataclass(frozen=True, eq=False)
class OpColors:
  """Kinds of ops that a picture distinguishes; the last holds all others.

  In a microbatched step, a kind is one pass of a microbatch: light for the
  forward pass, dark for the backward pass, gray for shared ops. Otherwise, a
  kind is an op type.

  Attributes:
    kind: [num_ops] int64 index of each op's kind.
    labels: [num_kinds] description of an op of the kind.
    legend: [num_kinds] label in the legend; neighbors may share one.
    colors: [num_kinds] "#rrggbb".
    is_split: whether kinds are passes of microbatches, not op types.
  """

  kind: np.ndarray
  labels: tuple[str, ...]
  legend: tuple[str, ...]
  colors: tuple[str, ...]
  is_split: bool


def op_colors(
  schedule: Schedule, type_colors: Sequence[str], other: str
) -> OpColors:
  """Assigns kinds and colors to the ops of a step.

  Args:
    type_colors: colors of the longest-running op types, used for a step without
      microbatches.
    other: color of other types, or of ops that microbatches share.
  """
  graph = schedule.placement.problem.graph
  if phases.is_split(graph):
    return _by_microbatch(graph, other)
  kind, names = _main_types(schedule, len(type_colors))
  colors = (*type_colors[: len(names) - 1], other)
  return OpColors(kind, tuple(names), tuple(names), colors, False)


def _by_microbatch(graph: OpGraph, other: str) -> OpColors:
  count = int(graph.microbatch.max()) + 1
  shown = min(count, MAX_MICROBATCHES)
  number = graph.microbatch.astype(np.int64) * shown // count
  is_backward = phases.phases(graph) == phases.BACKWARD
  kind = np.where(number < 0, 2 * shown, 2 * number + is_backward)
  names = [
    _name(np.flatnonzero(np.arange(count) * shown // count == i).tolist())
    for i in range(shown)
  ]
  both = [
    pair for color in sequential(shown) for pair in (lighter(color), color)
  ]
  labels = [f"{x} of {name}" for name in names for x in phases.NAMES[:2]]
  shared = "update, shared"
  return OpColors(
    kind,
    (*labels, shared),
    (*(name for name in names for _ in range(2)), shared),
    (*both, other),
    True,
  )


def _name(numbers: Sequence[int]) -> str:
  if len(numbers) == 1:
    return f"microbatch {numbers[0]}"
  return f"microbatches {numbers[0]} to {numbers[-1]}"


def sequential(count: int) -> list[str]:
  """Returns [count] colors with a visible order."""
  anchors = np.array([_channels(color) for color in _ANCHORS])
  at = np.linspace(0, len(anchors) - 1, max(count, 2))[:count]
  rgb = [np.interp(at, range(len(anchors)), part) for part in anchors.T]
  return [_hex(color) for color in zip(*rgb, strict=True)]


def _channels(color: str) -> list[int]:
  return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def _hex(channels: Sequence[float]) -> str:
  return "#" + "".join(f"{round(x):02x}" for x in channels)


def lighter(color: str) -> str:
  """Returns the color of a forward pass, given its backward pass's color."""
  return _hex([x + _LIGHTER * (255 - x) for x in _channels(color)])


def _main_types(schedule: Schedule, limit: int) -> tuple[np.ndarray, list[str]]:
  """Returns [num_ops] indices of main op types, and the types' names."""
  types = schedule.placement.problem.graph.types
  time_us = compute_end_us(schedule) - schedule.op_start_us
  total: dict[str, float] = {}
  for name, us in zip(types, time_us.tolist(), strict=True):
    total[name] = total.get(name, 0.0) + us
  ranked = sorted((t for t in total if total[t] > 0), key=lambda t: -total[t])
  main = ranked[:limit]
  number = {name: i for i, name in enumerate(main)}
  kind = np.array([number.get(name, len(main)) for name in types], np.int64)
  return kind, [*main, "other ops"]
