"""Random image networks of ENAS' cells, Placeto's `cifar10` set.

A member draws a normal and a reduction cell from the micro search space of
Pham et al. (arXiv 1802.03268): five sums, each of two earlier states through
two of five operations. The draw depends on the index alone.
"""

import keras
import numpy as np

from tfplace.models.families import generator
from tfplace.models.image_cells import Cell, CellNetwork, Edge
from tfplace.models.image_models import classifier
from tfplace.models.lstm import Sampler

CHOICES = (
  "separable_3x3",
  "separable_5x5",
  "average_pool_3x3",
  "max_pool_3x3",
  "identity",
)
_SUMS = 5
_IMAGE_SIZE, _CLASSES = 32, 10  # CIFAR-10


def draw_cells(index: int) -> tuple[Cell, Cell]:
  """The normal and the reduction cell of a member.

  Raises:
    ExtractionError: no such member.
  """
  rng = generator("cifar10", index)
  return _draw(rng), _draw(rng)


def _draw(rng: np.random.Generator) -> Cell:
  """A cell that puts out the inputs and sums that no sum uses."""

  def edge(states: int) -> Edge:
    return Edge(int(rng.integers(states)), CHOICES[rng.integers(len(CHOICES))])

  sums = tuple((edge(2 + i), edge(2 + i)) for i in range(_SUMS))
  used = {side.state for pair in sums for side in pair}
  return Cell(sums, tuple(i for i in range(2 + _SUMS) if i not in used))


def cifar10(
  index: int = 0, batch_size: int = 160, cells: int = 2, filters: int = 20
) -> tuple[keras.Model, Sampler]:
  """Member `index` of the family.

  From ENAS' public search: batch 160, 20 filters, SGD with Nesterov momentum
  of 0.9 and rate 0.05. It has 8 cells; 4, a reduction before each of 2 normal
  ones, are chosen for graphs of moderate size.

  Args:
    index: which member, 0 to 31.
    batch_size: images per step.
    cells: normal cells.
    filters: of a first normal cell; the reduction before it doubles them.
  """
  normal, reduction = draw_cells(index)
  network = CellNetwork(
    normal,
    reduction,
    cells=cells,
    filters=filters,
    stem_filters=3 * filters,
    stem_cells=0,
  )
  model = network.model("cifar10", _IMAGE_SIZE, _CLASSES)
  optimizer = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)
  return classifier(model, optimizer, batch_size, _IMAGE_SIZE, _CLASSES)
