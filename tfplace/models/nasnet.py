"""NASNet-A (Zoph et al., arXiv 1707.07012), one of Placeto's three models."""

import keras

from tfplace.models.cells import Cell, CellNetwork, Edge
from tfplace.models.images import classifier
from tfplace.models.words import Sampler

NORMAL = Cell(
  sums=(
    (Edge(0, "separable_5x5"), Edge(1, "separable_3x3")),
    (Edge(1, "separable_5x5"), Edge(1, "separable_3x3")),
    (Edge(0, "average_pool_3x3"), Edge(1, "identity")),
    (Edge(1, "average_pool_3x3"), Edge(1, "average_pool_3x3")),
    (Edge(0, "separable_3x3"), Edge(0, "identity")),
  ),
  output=(1, 2, 3, 4, 5, 6),
)
REDUCTION = Cell(
  sums=(
    (Edge(0, "separable_5x5"), Edge(1, "separable_7x7")),
    (Edge(0, "max_pool_3x3"), Edge(1, "separable_7x7")),
    (Edge(0, "average_pool_3x3"), Edge(1, "separable_5x5")),
    (Edge(3, "identity"), Edge(2, "average_pool_3x3")),
    (Edge(2, "separable_3x3"), Edge(0, "max_pool_3x3")),
  ),
  output=(3, 4, 5, 6),
)
# The last cells concatenate six states of four times the first filters.
_PENULTIMATE_PER_FILTER = 24


def nasnet(
  batch_size: int = 64,
  image_size: int = 224,
  classes: int = 1000,
  num_blocks: int = 4,
  penultimate_filters: int = 1056,
) -> tuple[keras.Model, Sampler]:
  """NASNet-A (N @ P): `num_blocks` @ `penultimate_filters`.

  The default is the published 4 @ 1056 for images of 224 pixels; 6 @ 4032 at
  331 pixels is the large one, 6 @ 768 at 32 pixels was for CIFAR-10. Placeto
  gives neither size nor batch; both are chosen. RMSProp is as in Inception-V3
  here. Not built: the auxiliary head and dropped paths.

  Args:
    batch_size: images per step.
    image_size: height and width, pixels.
    classes: number of labels.
    num_blocks: N, normal cells between two reductions.
    penultimate_filters: P, channels of the last cell's output; rounded down
      to a multiple of 96.
  """
  filters = max(penultimate_filters // (4 * _PENULTIMATE_PER_FILTER), 1) * 4
  network = CellNetwork(
    NORMAL,
    REDUCTION,
    cells=3 * num_blocks,
    filters=filters,
    stem_filters=32,
    stem_cells=2,
  )
  model = network.model("nasnet", image_size, classes)
  optimizer = keras.optimizers.RMSprop(0.045, rho=0.9, epsilon=1.0)
  return classifier(model, optimizer, batch_size, image_size, classes)
