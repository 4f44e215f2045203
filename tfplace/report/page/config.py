"""Sizes of the figures, and how much they draw."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class PageConfig:
  """Layout in pixels, and limits that keep the file small.

  Attributes:
    width: Width of the timeline; the page scrolls if it is narrower.
    narrow_width: Width of figures without zoom.
    label_width: Width of a letter of a legend.
    glyph_width: Width of the sign before a label of a legend.
    legend_row: Height of a row of a legend.
    max_op_bars: Bars of ops in the timeline.
    max_transfer_bars: Bars of transfers in the timeline.
    max_critical_bars: Bars of the critical path in each row.
    max_links: Busiest links that are drawn; a host of 8 GPUs has 72.
    device_row: Height of a device's row in the timeline.
    link_row: Height of a link's row.
    least_height: Fraction of a row that keeps nearly idle bars visible.
    max_points: Points in the memory curves of all devices together.
    capacity_room: Capacities above this multiple of the peak are not drawn.
    max_bars: Bars of the critical path and of the gains.
    bar_row: Height of such a bar.
    max_layers: Columns of layers.
    min_layer_share: Fraction of op time that deserves a column.
    max_arcs: Transfers between layers.
    arc_points: Points of an arc.
    disc: Diameter of the largest disc of a layer.
    layer_row: Height of a device's row among the layers.
    max_microbatches: Rows of microbatches.
    min_cell_share: Smallest fraction of a cell that is drawn.
    cell: Fraction of a column and a row that a cell fills.
  """

  width: int = 940
  narrow_width: int = 430
  label_width: float = 7.0
  glyph_width: float = 37.0
  legend_row: int = 28
  max_op_bars: int = 4500
  max_transfer_bars: int = 2400
  max_critical_bars: int = 900
  max_links: int = 16
  device_row: int = 34
  link_row: int = 22
  least_height: float = 0.2
  max_points: int = 6000
  capacity_room: float = 4.0
  max_bars: int = 10
  bar_row: int = 28
  max_layers: int = 28
  min_layer_share: float = 0.002
  max_arcs: int = 120
  arc_points: int = 20
  disc: float = 38.0
  layer_row: int = 58
  max_microbatches: int = 32
  min_cell_share: float = 0.02
  cell: float = 0.88


CONFIG = PageConfig()
