"""Image models: Inception-V3, NASNet-A and AmoebaNet-D.

Inception-V3 is the image model of every placement paper. NASNet-A (Zoph et al.,
arXiv 1707.07012) is one of Placeto's three models. AmoebaNet-D (Real et al.,
arXiv 1802.01548) has the form of Google's TPU code, which GPipe trained. All
models take `batch_size` (images per step), `image_size` (height and width in
pixels) and `classes` (number of labels).
"""

import keras
import numpy as np

from tfplace.models.image_cells import (
  Cell,
  Edge,
  cell_network,
  check_image_size,
)
from tfplace.models.lstm import Sampler


def classifier(
  model: keras.Model, optimizer: keras.optimizers.Optimizer, batch_size: int
) -> tuple[keras.Model, Sampler]:
  """Compiles an image classifier and returns it with its batch sampler.

  The model maps images [batch, image_size, image_size, 3] to probabilities
  [batch, classes].
  """
  shape = batch_size, *model.input_shape[1:]
  classes = model.output_shape[-1]
  model.compile(
    optimizer=optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(),
    jit_compile=False,
  )

  def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    images = rng.uniform(-1, 1, shape).astype(np.float32)
    return images, rng.integers(0, classes, batch_size, np.int32)

  return model, sample


_SMALLEST_IMAGE = 75  # limit of keras.applications; the paper uses 299


def inception_v3(
  batch_size: int = 32, image_size: int = 299, classes: int = 1000
) -> tuple[keras.Model, Sampler]:
  """Builds Inception-V3 of `keras.applications` with random weights.

  The optimizer is that of Szegedy et al., "Rethinking the Inception
  Architecture" (2016): RMSProp with decay 0.9, epsilon 1.0 and learning rate
  0.045. Batch size 32 is that of the placement papers (GO's table 1).

  Raises:
    ExtractionError: The images are too small for the network.
  """
  check_image_size("inception_v3", image_size, _SMALLEST_IMAGE)
  model = keras.applications.InceptionV3(
    weights=None, input_shape=(image_size, image_size, 3), classes=classes
  )
  optimizer = keras.optimizers.RMSprop(0.045, rho=0.9, epsilon=1.0)
  return classifier(model, optimizer, batch_size)


NASNET_NORMAL = Cell(
  sums=(
    (Edge(0, "separable_5x5"), Edge(1, "separable_3x3")),
    (Edge(1, "separable_5x5"), Edge(1, "separable_3x3")),
    (Edge(0, "average_pool_3x3"), Edge(1, "identity")),
    (Edge(1, "average_pool_3x3"), Edge(1, "average_pool_3x3")),
    (Edge(0, "separable_3x3"), Edge(0, "identity")),
  ),
  output=(1, 2, 3, 4, 5, 6),
)
NASNET_REDUCTION = Cell(
  sums=(
    (Edge(0, "separable_5x5"), Edge(1, "separable_7x7")),
    (Edge(0, "max_pool_3x3"), Edge(1, "separable_7x7")),
    (Edge(0, "average_pool_3x3"), Edge(1, "separable_5x5")),
    (Edge(3, "identity"), Edge(2, "average_pool_3x3")),
    (Edge(2, "separable_3x3"), Edge(0, "max_pool_3x3")),
  ),
  output=(3, 4, 5, 6),
)
# The last cells concatenate six states, each of four times the first filters.
_PENULTIMATE_PER_FILTER = 24


def nasnet(
  *,
  batch_size: int = 64,
  image_size: int = 224,
  classes: int = 1000,
  num_blocks: int = 4,
  penultimate_filters: int = 1056,
) -> tuple[keras.Model, Sampler]:
  """Builds NASNet-A (N @ P).

  The default is the published 4 @ 1056 for images of 224 pixels. The large
  variant is 6 @ 4032 at 331 pixels; 6 @ 768 at 32 pixels is for CIFAR-10.
  Placeto gives neither image size nor batch size; both are choices of this zoo.
  RMSProp is configured as in `inception_v3`. Not implemented: the auxiliary
  head and dropped paths.

  Args:
    num_blocks: N, normal cells between two reduction cells.
    penultimate_filters: P, channels of the last cell's output; rounded down to
      a multiple of 96.
  """
  filters = max(penultimate_filters // (4 * _PENULTIMATE_PER_FILTER), 1) * 4
  model = cell_network(
    "nasnet",
    NASNET_NORMAL,
    NASNET_REDUCTION,
    cells=3 * num_blocks,
    filters=filters,
    image_size=image_size,
    classes=classes,
  )
  optimizer = keras.optimizers.RMSprop(0.045, rho=0.9, epsilon=1.0)
  return classifier(model, optimizer, batch_size)


# States and operations as in `model_specs.py` of github.com/tensorflow/tpu. Its
# normal cell outputs states 0, 3, 4 and 6, that of the paper 4, 5 and 6. GPipe
# trained the cell of the code.
AMOEBANET_NORMAL = Cell(
  sums=(
    (Edge(1, "1x1"), Edge(1, "max_pool_3x3")),
    (Edge(1, "identity"), Edge(0, "1x7_7x1")),
    (Edge(0, "1x1"), Edge(0, "1x7_7x1")),
    (Edge(2, "max_pool_3x3"), Edge(2, "identity")),
    (Edge(1, "average_pool_3x3"), Edge(5, "1x1")),
  ),
  output=(0, 3, 4, 6),
)
AMOEBANET_REDUCTION = Cell(
  sums=(
    (Edge(0, "max_pool_2x2"), Edge(0, "max_pool_3x3")),
    (Edge(2, "identity"), Edge(1, "3x3")),
    (Edge(2, "1x7_7x1"), Edge(2, "max_pool_3x3")),
    (Edge(3, "identity"), Edge(1, "max_pool_2x2")),
    (Edge(2, "average_pool_3x3"), Edge(3, "1x1")),
  ),
  output=(4, 5, 6),
)


def amoebanet_d(
  *,
  batch_size: int = 32,
  image_size: int = 224,
  classes: int = 1000,
  cells: int = 18,
  filters: int = 208,
) -> tuple[keras.Model, Sampler]:
  """Builds AmoebaNet-D (L, D) of GPipe.

  The default (18, 208) has 81 million weights, about the largest that GPipe
  (arXiv 1811.06965) trained on one accelerator. Batch size 32 and RMSProp are
  those of the TPU code. GO gives no image size; 224 pixels are a choice of this
  zoo. Not implemented: regularization (auxiliary head, dropped paths, dropout,
  weight decay, label smoothing).

  Args:
    cells: L, normal cells; reduction cells divide them into thirds.
    filters: D, filters of the first normal cells; rounded down to a multiple of
      8.
  """
  model = cell_network(
    "amoebanet_d",
    AMOEBANET_NORMAL,
    AMOEBANET_REDUCTION,
    cells=cells,
    filters=max(filters // 8, 1) * 8,
    image_size=image_size,
    classes=classes,
  )
  optimizer = keras.optimizers.RMSprop(
    0.015, rho=0.9, momentum=0.9, epsilon=1.0
  )
  return classifier(model, optimizer, batch_size)
