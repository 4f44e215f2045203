"""Families of models for pre-training.

The families follow Placeto's three sets of 32 graphs each (arXiv 1906.08879).
`cifar10` and `ptb` are random cells of an architecture search. `nmt` is a
translation model in 32 sizes. Placeto's own graphs are not published; each
member here is sampled from its index alone.
"""

import itertools
import zlib

import keras
import numpy as np

from tfplace.errors import ExtractionError
from tfplace.models.image_cells import Cell, CellNetwork, Edge
from tfplace.models.image_models import classifier
from tfplace.models.lstm import Sampler

MEMBERS = 32  # members per family, as in Placeto (arXiv 1906.08879)


def generator(family: str, index: int) -> np.random.Generator:
  """Returns the random generator that defines a family member.

  Raises:
    ExtractionError: The family has no member of this index.
  """
  if not 0 <= index < MEMBERS:
    raise ExtractionError(
      f"family {family!r} has members 0 to {MEMBERS - 1}, not {index}"
    )
  return np.random.default_rng((zlib.crc32(family.encode()), index))


NAME = "nmt_family"
# Each pair of length and batch size is one member. Placeto gives no values;
# these yield graphs of about one to five thousand ops.
LENGTHS = (4, 6, 8, 10, 12, 14, 16, 18)
BATCH_SIZES = (16, 32, 64, 128)


def sizes(index: int) -> dict[str, int]:
  """Returns the length and the batch size of a member, in mixed order.

  Raises:
    ExtractionError: There is no such member.
  """
  generator(NAME, index)  # Rejects an index that is out of range.
  order = generator(NAME, 0).permutation(MEMBERS)
  pairs = list(itertools.product(LENGTHS, BATCH_SIZES))
  length, batch_size = pairs[order[index]]
  return {"length": length, "batch_size": batch_size}


CELL_OPERATIONS = (
  "separable_3x3",
  "separable_5x5",
  "average_pool_3x3",
  "max_pool_3x3",
  "identity",
)
_CELL_SUMS = 5
_IMAGE_SIZE, _CLASSES = 32, 10  # CIFAR-10


def draw_cells(index: int) -> tuple[Cell, Cell]:
  """Samples the normal and the reduction cell of a `cifar10` member.

  The cells come from the micro search space of ENAS (Pham et al., arXiv
  1802.03268): five sums, each of two earlier states transformed by two of five
  operations.

  Raises:
    ExtractionError: There is no such member.
  """
  rng = generator("cifar10", index)
  return _draw_cell(rng), _draw_cell(rng)


def _draw_cell(rng: np.random.Generator) -> Cell:
  """Samples a cell whose output is the states that no sum uses."""

  def edge(states: int) -> Edge:
    return Edge(
      int(rng.integers(states)),
      CELL_OPERATIONS[rng.integers(len(CELL_OPERATIONS))],
    )

  sums = tuple((edge(2 + i), edge(2 + i)) for i in range(_CELL_SUMS))
  used = {side.state for pair in sums for side in pair}
  return Cell(sums, tuple(i for i in range(2 + _CELL_SUMS) if i not in used))


def cifar10(
  index: int = 0, batch_size: int = 160, cells: int = 2, filters: int = 20
) -> tuple[keras.Model, Sampler]:
  """Builds member `index` of the family `cifar10`, a network of ENAS cells.

  Batch size 160, 20 filters and SGD with Nesterov momentum 0.9 and learning
  rate 0.05 are those of the public ENAS search. ENAS uses 8 cells. The default
  here is 2 normal cells, each preceded by a reduction cell, which keeps the
  graph at a moderate size.

  Args:
    index: Member, 0 to 31.
    batch_size: Images per step.
    cells: Number of normal cells.
    filters: Base number of filters. The reduction cell before the first normal
      cell doubles it.
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
