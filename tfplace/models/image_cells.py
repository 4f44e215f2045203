"""Image networks of repeated normal cells with reductions in between.

NASNet (Zoph et al., arXiv 1707.07012) introduced the structure; AmoebaNet kept
it. A cell reads the outputs of the two previous cells, adds pairs of
operations on earlier states, and concatenates some of its states. The
operations are those of NASNet's search space, in the order activation,
convolution, batch normalization of the public NASNet and AmoebaNet code. Each
maps a Keras tensor [batch, height, width, channels] to one of `filters`
channels, downsampled by `stride`. The layers of cell N are called `cellN_...`,
its last layer `mixedN`, as in Inception-V3.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import keras

from tfplace.errors import ExtractionError

Size = int | tuple[int, int]
Operation = Callable[[keras.KerasTensor, int, int, str], keras.KerasTensor]


def channels(value: keras.KerasTensor) -> int:
  """Returns the last dimension of a Keras tensor."""
  return int(value.shape[-1])


def norm(value: keras.KerasTensor, name: str) -> keras.KerasTensor:
  """Applies batch normalization with the decay and epsilon of NASNet."""
  return keras.layers.BatchNormalization(
    momentum=0.9997, epsilon=1e-3, name=name
  )(value)


def conv(
  value: keras.KerasTensor, filters: int, size: Size, stride: Size, name: str
) -> keras.KerasTensor:
  """Applies a padded convolution without bias, then batch normalization."""
  value = keras.layers.Conv2D(
    filters,
    size,
    strides=stride,
    padding="same",
    use_bias=False,
    kernel_initializer="he_normal",
    name=f"{name}_conv",
  )(value)
  return norm(value, f"{name}_bn")


def activated_conv(
  value: keras.KerasTensor,
  filters: int,
  size: Size,
  name: str,
  stride: Size = 1,
) -> keras.KerasTensor:
  """Applies ReLU, a convolution and batch normalization."""
  value = keras.layers.ReLU(name=f"{name}_relu")(value)
  return conv(value, filters, size, stride, name)


def halved(
  value: keras.KerasTensor, filters: int, name: str
) -> keras.KerasTensor:
  """Halves height and width by separate paths for odd and even pixels."""
  value = keras.layers.ReLU(name=f"{name}_relu")(value)
  shifted = keras.layers.ZeroPadding2D(((0, 1), (0, 1)), name=f"{name}_pad")
  cropped = keras.layers.Cropping2D(((1, 0), (1, 0)), name=f"{name}_crop")
  paths = []
  for i, pixels in enumerate((value, cropped(shifted(value)))):
    pool = keras.layers.AveragePooling2D(1, 2, name=f"{name}_pool{i}")
    convolution = keras.layers.Conv2D(
      filters // 2,
      1,
      use_bias=False,
      kernel_initializer="he_normal",
      name=f"{name}_conv{i}",
    )
    paths.append(convolution(pool(pixels)))
  joined = keras.layers.Concatenate(name=f"{name}_join")(paths)
  return norm(joined, f"{name}_bn")


def _separable(
  value: keras.KerasTensor, filters: int, stride: int, name: str, *, size: int
) -> keras.KerasTensor:
  for i in range(2):
    value = keras.layers.ReLU(name=f"{name}_relu{i}")(value)
    value = keras.layers.SeparableConv2D(
      filters,
      size,
      strides=stride if i == 0 else 1,
      padding="same",
      use_bias=False,
      name=f"{name}_separable{i}",
    )(value)
    value = norm(value, f"{name}_bn{i}")
  return value


def _bottleneck(
  value: keras.KerasTensor,
  filters: int,
  stride: int,
  name: str,
  *,
  sizes: tuple[tuple[int, int], ...],
) -> keras.KerasTensor:
  """Applies convolutions on a quarter of the filters, as AmoebaNet's code.

  The stride applies only to the dimensions that a kernel covers.
  """
  inner = max(filters // 4, 1)
  value = activated_conv(value, inner, 1, f"{name}_in")
  for i, size in enumerate(sizes):
    strides = (stride if size[0] > 1 else 1, stride if size[1] > 1 else 1)
    value = activated_conv(value, inner, size, f"{name}_{i}", strides)
  return activated_conv(value, filters, 1, f"{name}_out")


def _pool(
  value: keras.KerasTensor,
  filters: int,
  stride: int,
  name: str,
  *,
  layer: type[keras.layers.Layer],
  size: int,
) -> keras.KerasTensor:
  value = layer(size, stride, padding="same", name=f"{name}_pool")(value)
  if channels(value) != filters:
    value = conv(value, filters, 1, 1, name)
  return value


def _project(
  value: keras.KerasTensor, filters: int, stride: int, name: str
) -> keras.KerasTensor:
  return activated_conv(value, filters, 1, name, stride)


def _identity(
  value: keras.KerasTensor, filters: int, stride: int, name: str
) -> keras.KerasTensor:
  if stride == 1 and channels(value) == filters:
    return value
  return _project(value, filters, stride, name)


_AVERAGE, _MAX = keras.layers.AveragePooling2D, keras.layers.MaxPooling2D

OPERATIONS: Mapping[str, Operation] = {
  "identity": _identity,
  "1x1": _project,
  "3x3": functools.partial(_bottleneck, sizes=((3, 3),)),
  "1x7_7x1": functools.partial(_bottleneck, sizes=((1, 7), (7, 1))),
  "separable_3x3": functools.partial(_separable, size=3),
  "separable_5x5": functools.partial(_separable, size=5),
  "separable_7x7": functools.partial(_separable, size=7),
  "average_pool_3x3": functools.partial(_pool, layer=_AVERAGE, size=3),
  "max_pool_2x2": functools.partial(_pool, layer=_MAX, size=2),
  "max_pool_3x3": functools.partial(_pool, layer=_MAX, size=3),
}


_STEM_KERNEL, _STEM_FILTERS = 3, 32  # height and width; channels
# Reduction cells before the first normal cell, with fewer filters.
_STEM_CELLS = 2


class Edge(NamedTuple):
  """Operation on a state of a cell.

  Attributes:
    state: 0 is the output of the previous cell, 1 that of the cell before it, 2
      and up are the sums of this cell.
    operation: A key of `OPERATIONS`.
  """

  state: int
  operation: str


@dataclasses.dataclass(frozen=True)
class Cell:
  """Structure of a cell.

  Attributes:
    sums: Pairs of operations. Each pair is added and becomes a new state.
    output: States to concatenate. An input that is larger than the last sum is
      halved first.
  """

  sums: tuple[tuple[Edge, Edge], ...]
  output: tuple[int, ...]


def cell_network(
  name: str,
  normal: Cell,
  reduction: Cell,
  *,
  cells: int,
  filters: int,
  image_size: int,
  classes: int,
) -> keras.Model:
  """Builds a classifier of images [batch, image_size, image_size, 3].

  Args:
    name: Name of the model.
    normal: Cell that keeps the size of the image.
    reduction: Cell that halves the size and doubles the filters.
    cells: Number of normal cells. Reduction cells divide them into thirds.
    filters: Filters of the operations of the first normal cells.
    image_size: Height and width in pixels.
    classes: Number of labels.

  Raises:
    ExtractionError: The images are too small for the stem.
  """
  check_image_size(name, image_size, _STEM_KERNEL)
  images = keras.Input((image_size, image_size, 3), name="images")
  stem = keras.layers.Conv2D(
    _STEM_FILTERS, _STEM_KERNEL, strides=2, use_bias=False, name="stem_conv"
  )(images)
  outputs = [norm(stem, "stem_bn")]
  filters //= 2**_STEM_CELLS
  for _ in range(_STEM_CELLS):
    _append(outputs, reduction, filters, 2)
    filters *= 2
  for number in range(cells):
    if number in (cells // 3, 2 * cells // 3):
      filters *= 2
      _append(outputs, reduction, filters, 2)
    _append(outputs, normal, filters, 1)
  value = keras.layers.Activation("relu", name="final_relu")(outputs[-1])
  value = keras.layers.GlobalAveragePooling2D(name="final_pool")(value)
  value = keras.layers.Dense(classes, activation="softmax", name="predictions")(
    value
  )
  return keras.Model(images, value, name=name)


def check_image_size(name: str, image_size: int, least: int) -> None:
  """Raises ExtractionError if images are too small for a model."""
  if image_size < least:
    raise ExtractionError(
      f"model {name!r}: image_size must be at least {least}, not {image_size}"
    )


def _append(
  outputs: list[keras.KerasTensor], cell: Cell, filters: int, stride: int
) -> None:
  """Applies a cell to the last two outputs and appends its own."""
  value, number = outputs[-1], len(outputs) - 1
  scope = f"cell{number}"
  before = _fitted(outputs, filters, f"{scope}_before")
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
  outputs.append(keras.layers.Concatenate(name=f"mixed{number}")(joined))


def _fitted(
  outputs: list[keras.KerasTensor], filters: int, name: str
) -> keras.KerasTensor:
  """Resizes the output of the cell before the last to that of the last."""
  if len(outputs) == 1:
    return outputs[0]
  before, value = outputs[-2:]
  if before.shape[1] != value.shape[1]:
    return halved(before, filters, name)
  if channels(before) != filters:
    return activated_conv(before, filters, 1, name)
  return before
