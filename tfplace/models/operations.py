"""The operations inside the cells of image networks.

Those of NASNet's search space (Zoph et al., arXiv 1707.07012), in the order of
activation, convolution and batch normalisation that they and AmoebaNet's
public code have. Each takes a Keras tensor [batch, height, width, channels]
and returns one of `filters` channels, smaller by `stride`.
"""

import functools
from collections.abc import Callable, Mapping

import keras

Size = int | tuple[int, int]
Operation = Callable[[keras.KerasTensor, int, int, str], keras.KerasTensor]


def channels(value: keras.KerasTensor) -> int:
  """The last dimension of a Keras tensor."""
  return int(value.shape[-1])


def norm(value: keras.KerasTensor, name: str) -> keras.KerasTensor:
  """Batch normalisation with the decay and epsilon of NASNet's code."""
  return keras.layers.BatchNormalization(
    momentum=0.9997, epsilon=1e-3, name=name
  )(value)


def conv(
  value: keras.KerasTensor, filters: int, size: Size, stride: Size, name: str
) -> keras.KerasTensor:
  """A convolution without bias that pads, and its batch normalisation."""
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
  """ReLU, convolution, batch normalisation."""
  value = keras.layers.ReLU(name=f"{name}_relu")(value)
  return conv(value, filters, size, stride, name)


def halved(
  value: keras.KerasTensor, filters: int, name: str
) -> keras.KerasTensor:
  """Half the height and width; odd and even pixels by paths of their own."""
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
  """A separable convolution, twice; only the first strides."""
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
  """Convolutions on a quarter of the filters, as AmoebaNet's code has it.

  A stride applies along the dimensions that a kernel covers.
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
  """The value itself, projected where its size must change."""
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
