"""Image networks made of cells: a normal cell repeated, a reduction between.

The frame that NASNet (Zoph et al., arXiv 1707.07012) set and AmoebaNet and
ENAS kept. A cell reads the outputs of the two cells before it, adds pairs of
operations on earlier states, and concatenates some of its states. Which states
and operations, a `Cell` says; the networks themselves are in `nasnet`,
`amoebanet` and `cifar10`.

Layers of cell N are called `cellN_...` and the one that ends it `mixedN`, as in
Inception-V3, so that op names tell where a human would cut.
"""

import dataclasses
from typing import NamedTuple

import keras

from tfplace.errors import ExtractionError
from tfplace.models.operations import (
  OPERATIONS,
  activated_conv,
  channels,
  halved,
  norm,
)

_STEM_KERNEL = 3  # height and width


class Edge(NamedTuple):
  """An operation on a state of a cell.

  Attributes:
    state: 0 is the output of the cell before, 1 that of the one before it,
      2 and on the sums of this cell.
    operation: a key of `OPERATIONS`.
  """

  state: int
  operation: str


@dataclasses.dataclass(frozen=True)
class Cell:
  """What a cell computes.

  Attributes:
    sums: each makes one more state, the sum of two operations.
    output: states that are concatenated; an input that is larger than the
      last sum is halved.
  """

  sums: tuple[tuple[Edge, Edge], ...]
  output: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class CellNetwork:
  """How cells make a network.

  Attributes:
    normal: the cell that keeps the image's size.
    reduction: the cell that halves it; filters double there.
    cells: number of normal cells; reduction cells part them into thirds.
    filters: of the operations of the first normal cells.
    stem_filters: of the convolution that reads the images.
    stem_cells: reduction cells before the first normal cell, with fewer
      filters; 2 for large images, whose stem also has stride 2, else 0.
  """

  normal: Cell
  reduction: Cell
  cells: int
  filters: int
  stem_filters: int
  stem_cells: int

  def model(self, name: str, image_size: int, classes: int) -> keras.Model:
    """A classifier of images [batch, image_size, image_size, 3].

    Raises:
      ExtractionError: images too small for the stem.
    """
    if image_size < _STEM_KERNEL:
      raise ExtractionError(
        f"model {name!r}: image_size must be at least {_STEM_KERNEL},"
        f" not {image_size}"
      )
    images = keras.Input((image_size, image_size, 3), name="images")
    outputs = [self._stem(images)]
    filters = self.filters // 2**self.stem_cells
    for _ in range(self.stem_cells):
      self._append(outputs, self.reduction, filters)
      filters *= 2
    reductions = (self.cells // 3, 2 * self.cells // 3)
    for number in range(self.cells):
      if number in reductions:
        filters *= 2
        self._append(outputs, self.reduction, filters)
      self._append(outputs, self.normal, filters)
    value = keras.layers.Activation("relu", name="final_relu")(outputs[-1])
    value = keras.layers.GlobalAveragePooling2D(name="final_pool")(value)
    value = keras.layers.Dense(
      classes, activation="softmax", name="predictions"
    )(value)
    return keras.Model(images, value, name=name)

  def _stem(self, images: keras.KerasTensor) -> keras.KerasTensor:
    large = self.stem_cells > 0
    value = keras.layers.Conv2D(
      self.stem_filters,
      _STEM_KERNEL,
      strides=2 if large else 1,
      padding="valid" if large else "same",
      use_bias=False,
      name="stem_conv",
    )(images)
    return norm(value, "stem_bn")

  def _append(
    self, outputs: list[keras.KerasTensor], cell: Cell, filters: int
  ) -> None:
    before = outputs[-2] if len(outputs) > 1 else None
    stride = 2 if cell is self.reduction else 1
    number = len(outputs) - 1
    outputs.append(_apply(cell, outputs[-1], before, filters, stride, number))


def _apply(
  cell: Cell,
  value: keras.KerasTensor,
  before: keras.KerasTensor | None,
  filters: int,
  stride: int,
  number: int,
) -> keras.KerasTensor:
  """The output of one cell; `before` is None in the first."""
  scope = f"cell{number}"
  before = _fitted(before, value, filters, f"{scope}_before")
  states = [activated_conv(value, filters, 1, f"{scope}_base"), before]
  for i, pair in enumerate(cell.sums):
    sides = [
      OPERATIONS[edge.operation](
        states[edge.state],
        filters,
        stride if edge.state < 2 else 1,
        f"{scope}_{i}_{side}",
      )
      for edge, side in zip(pair, ("left", "right"), strict=True)
    ]
    states.append(keras.layers.Add(name=f"{scope}_{i}_add")(sides))
  height = states[-1].shape[1]
  joined = [
    states[i]
    if states[i].shape[1] == height
    else halved(states[i], filters, f"{scope}_output{i}")
    for i in cell.output
  ]
  return keras.layers.Concatenate(name=f"mixed{number}")(joined)


def _fitted(
  before: keras.KerasTensor | None,
  value: keras.KerasTensor,
  filters: int,
  name: str,
) -> keras.KerasTensor:
  """The output of the cell before the last, in the size of the last's."""
  if before is None:
    return value
  if before.shape[1] != value.shape[1]:
    return halved(before, filters, name)
  if channels(before) != filters:
    return activated_conv(before, filters, 1, name)
  return before
