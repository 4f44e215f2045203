"""AmoebaNet-D (Real et al., arXiv 1802.01548), an image model found by
evolution, in the form that Google's TPU code published and GPipe trained.
"""

import keras

from tfplace.models.cells import Cell, CellNetwork, Edge
from tfplace.models.images import classifier
from tfplace.models.words import Sampler

# States and operations as in `model_specs.py` of github.com/tensorflow/tpu.
# Its normal cell puts out states 0, 3, 4 and 6, the paper's 4, 5 and 6; GPipe
# trained the code's.
NORMAL = Cell(
  sums=(
    (Edge(1, "1x1"), Edge(1, "max_pool_3x3")),
    (Edge(1, "identity"), Edge(0, "1x7_7x1")),
    (Edge(0, "1x1"), Edge(0, "1x7_7x1")),
    (Edge(2, "max_pool_3x3"), Edge(2, "identity")),
    (Edge(1, "average_pool_3x3"), Edge(5, "1x1")),
  ),
  output=(0, 3, 4, 6),
)
REDUCTION = Cell(
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
  batch_size: int = 32,
  image_size: int = 224,
  classes: int = 1000,
  cells: int = 18,
  filters: int = 208,
) -> tuple[keras.Model, Sampler]:
  """AmoebaNet-D (L, D) of GPipe: `cells` and `filters`.

  The default (18, 208), 81 million weights, is about the largest that GPipe
  (arXiv 1811.06965) trained on one accelerator; batch 32 and RMSProp are those
  of the TPU code. GO gives no size; 224 pixels are chosen. Not built: what
  regularises only (auxiliary head, dropped paths, dropout, weight decay, label
  smoothing).

  Args:
    batch_size: images per step.
    image_size: height and width, pixels.
    classes: number of labels.
    cells: normal cells; reduction cells part them into thirds.
    filters: of the first normal cells; rounded down to a multiple of 8.
  """
  network = CellNetwork(
    NORMAL,
    REDUCTION,
    cells=cells,
    filters=max(filters // 8, 1) * 8,
    stem_filters=32,
    stem_cells=2,
  )
  model = network.model("amoebanet_d", image_size, classes)
  optimizer = keras.optimizers.RMSprop(
    0.015, rho=0.9, momentum=0.9, epsilon=1.0
  )
  return classifier(model, optimizer, batch_size, image_size, classes)
