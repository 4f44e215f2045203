"""Colors of ops in pictures of a step, by microbatch or by op type."""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np

from tfplace.graph import phases
from tfplace.report.rows import LINK, Row, compute_us
from tfplace.simulate import Schedule

# Distinguishable with any color vision: the eight of M. Okabe and K. Ito,
# "Color Universal Design" (2008), with a darker yellow for white backgrounds.
BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, VERMILLION, YELLOW, BLACK = "#56b4e9", "#d55e00", "#c9b800", "#1a1a1a"
TRANSFER_COLOR, MESSAGE_COLOR, CRITICAL_COLOR = ORANGE, VERMILLION, BLACK
OTHER_COLOR = "#c4c8ce"
_TYPE_COLORS = (BLUE, SKY, GREEN, PINK, YELLOW)
MAX_MICROBATCHES = 12  # number of colors; beyond that, neighbors share one
_LIGHTER = 0.55  # forward passes: fraction of the way to white


@dataclasses.dataclass(frozen=True, eq=False)
class OpColors:
  """Kinds of bars that a picture distinguishes.

  In a microbatched step, a kind is one pass of a microbatch: light for the
  forward pass, dark for the backward pass, gray for shared ops, and transfers
  have the color of their microbatch. Otherwise, a kind is an op type. The last
  three kinds are other ops, sends and receives, and other transfers.

  Attributes:
    kind: [num_ops] int64 index of each op's kind.
    transfer_kind: [num_transfers] int64 index of each transfer's kind.
    legend: [num_kinds] label in the legend; neighbors may share one.
    colors: [num_kinds] "#rrggbb".
    is_microbatched: whether kinds are passes of microbatches, not op types.
  """

  kind: np.ndarray
  transfer_kind: np.ndarray
  legend: tuple[str, ...]
  colors: tuple[str, ...]
  is_microbatched: bool

  def of_row(self, row: Row) -> np.ndarray:
    """Returns the [num_items] int64 kinds of a row."""
    if row.kind == LINK:
      return self.transfer_kind[row.items]
    kinds = np.full(len(row.items), len(self.colors) - 2)
    kinds[row.is_op] = self.kind[row.items[row.is_op]]
    return kinds


def op_colors(schedule: Schedule) -> OpColors:
  """Assigns kinds and colors to the ops and transfers of a step.

  Without microbatches, the longest-running op types have a color each.
  """
  graph = schedule.placement.problem.graph
  is_microbatched = phases.is_microbatched(graph)
  kind, names, colors = (_by_microbatch if is_microbatched else _by_type)(
    schedule
  )
  other = len(names)
  transfer_kind = np.full(len(schedule.transfers), other + 2)
  if is_microbatched:
    sent = kind[schedule.transfers.src_op]
    transfer_kind = np.where(sent < other, sent, other + 2)
  rest = "update, shared" if is_microbatched else "other ops"
  names += [rest, "send, receive", "transfers"]
  colors += [OTHER_COLOR, MESSAGE_COLOR, TRANSFER_COLOR]
  return OpColors(
    kind, transfer_kind, tuple(names), tuple(colors), is_microbatched
  )


_Kinds = tuple[np.ndarray, list[str], list[str]]  # of ops, names and colors


def _by_type(schedule: Schedule) -> _Kinds:
  types = schedule.placement.problem.graph.types
  total = collections.Counter[str]()
  for name, us in zip(types, compute_us(schedule).tolist(), strict=True):
    total[name] += us
  main = [name for name, us in total.most_common(len(_TYPE_COLORS)) if us > 0]
  number = {name: i for i, name in enumerate(main)}
  kind = np.array([number.get(name, len(main)) for name in types], np.int64)
  return kind, main, list(_TYPE_COLORS[: len(main)])


def _by_microbatch(schedule: Schedule) -> _Kinds:
  from matplotlib import colormaps
  from matplotlib.colors import to_hex

  graph = schedule.placement.problem.graph
  count = int(graph.microbatch.max()) + 1
  shown = min(count, MAX_MICROBATCHES)
  number = graph.microbatch.astype(np.int64) * shown // count
  is_backward = phases.phases(graph) == phases.BACKWARD
  kind = np.where(number < 0, 2 * shown, 2 * number + is_backward)
  # The order of these colors is visible with any color vision.
  dark = colormaps["viridis"](np.linspace(0.1, 0.95, shown))[:, :3]
  light = dark + _LIGHTER * (1 - dark)
  names, colors = [], []
  for i in range(shown):
    numbers = np.flatnonzero(np.arange(count) * shown // count == i)
    names += [_name(numbers.tolist())] * 2
    colors += [to_hex(light[i]), to_hex(dark[i])]
  return kind, names, colors


def _name(numbers: Sequence[int]) -> str:
  if len(numbers) == 1:
    return f"microbatch {numbers[0]}"
  return f"microbatches {numbers[0]} to {numbers[-1]}"
