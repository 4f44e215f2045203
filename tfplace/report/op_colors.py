"""The colour of each op in pictures of a step: where the step was split, of its
microbatch, light in the forward pass and dark in the backward pass, and grey
for what microbatches share; else of its type.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.core.op_graph import OpGraph
from tfplace.report import phases
from tfplace.report.rows import compute_end_us
from tfplace.simulate import Schedule

MAX_MICROBATCHES = 12  # colours; of more, neighbours share one
# Ever brighter from purple to yellow, as in Viridis (S. van der Walt and N.
# Smith, 2015), so that the order is seen with any kind of colour vision; with
# less black at its begin and more blue, so that neighbours differ more.
_ANCHORS = ("#6a2c91", "#3f5fc0", "#1f93a8", "#2fb673", "#95c93d", "#e3c71c")
_LIGHTER = 0.55  # of the way to white


@dataclasses.dataclass(frozen=True, eq=False)
class OpColors:
  """The kinds of ops that a picture tells apart; the last is all others.

  Attributes:
    kind: [num_ops] int64 kind of each op.
    labels: [num_kinds] what an op of the kind is.
    legend: [num_kinds] the label in the legend, where neighbours may share one.
    colors: [num_kinds] "#rrggbb".
    is_split: by microbatch and not by type.
  """

  kind: np.ndarray
  labels: tuple[str, ...]
  legend: tuple[str, ...]
  colors: tuple[str, ...]
  is_split: bool


def op_colors(
  schedule: Schedule, type_colors: Sequence[str], other: str
) -> OpColors:
  """Kinds and colours of the ops of a step.

  Args:
    schedule: the step.
    type_colors: of the op types that take longest, where nothing was split.
    other: of all other types, or of what microbatches share.
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
  """[count] colours in an order that can be seen."""
  anchors = np.array([_channels(color) for color in _ANCHORS])
  at = np.linspace(0, len(anchors) - 1, max(count, 2))[:count]
  rgb = [np.interp(at, range(len(anchors)), part) for part in anchors.T]
  return [_hex(color) for color in zip(*rgb, strict=True)]


def _channels(color: str) -> list[int]:
  """ "#rrggbb" -> red, green, blue."""
  return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def _hex(channels: Sequence[float]) -> str:
  return "#" + "".join(f"{round(x):02x}" for x in channels)


def lighter(color: str) -> str:
  """The colour of the forward pass, "#rrggbb", from that of the backward."""
  return _hex([x + _LIGHTER * (255 - x) for x in _channels(color)])


def _main_types(schedule: Schedule, limit: int) -> tuple[np.ndarray, list[str]]:
  """The op types that take longest.

  Returns:
    [num_ops] int64 number of each op's type among them, and their names; the
    last one is all other types.
  """
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
