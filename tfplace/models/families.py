"""Families of models for pre-training, and the sizes to pre-train on.

Placeto's three sets of 32 graphs each (arXiv 1906.08879): `cifar10` and `ptb`
are random cells of an architecture search, `nmt` a translation model in 32
sizes. Which graphs Placeto had is not published; these are drawn here, each by
its index alone; the zoo has them with the size `index`.

`TRAINING_SPLIT` has models of the published tables in other sizes than any of
their rows, with some thousands of ops each. WaveNet, AmoebaNet and NASNet are
not among them, so as to be unseen in pre-training.
"""

import itertools
import zlib
from collections.abc import Mapping

import keras
import numpy as np

from tfplace.errors import ExtractionError
from tfplace.models.image_cells import Cell, CellNetwork, Edge
from tfplace.models.image_models import classifier
from tfplace.models.lstm import Sampler
from tfplace.models.zoo import ZooModel, build

MEMBERS = 32  # of each family, as in Placeto (arXiv 1906.08879)


def generator(family: str, index: int) -> np.random.Generator:
  """The random numbers of one member, the same in every run.

  Raises:
    ExtractionError: the family has no such member.
  """
  if not 0 <= index < MEMBERS:
    raise ExtractionError(
      f"family {family!r} has members 0 to {MEMBERS - 1}, not {index}"
    )
  return np.random.default_rng((zlib.crc32(family.encode()), index))


TRAINING = 24  # members; the others test

# Family -> its name in the zoo.
FAMILIES: Mapping[str, str] = {
  "cifar10": "cifar10",
  "ptb": "ptb",
  "nmt": "nmt_family",
}
_PARTS = {"train": range(TRAINING), "test": range(TRAINING, MEMBERS)}


def member(
  family: str, index: int, batch_size: int | None = None, **sizes: int
) -> ZooModel:
  """Builds a member of a family.

  Args:
    family: a key of `FAMILIES`.
    index: 0 to 31; the same graph in every run.
    batch_size: examples per step; None is the member's own.
    **sizes: further sizes, as the zoo's model documents them.

  Raises:
    ExtractionError: no such family, member or size.
  """
  if family not in FAMILIES:
    raise ExtractionError(
      f"unknown family {family!r}: choose from {', '.join(FAMILIES)}"
    )
  return build(FAMILIES[family], batch_size, index=index, **sizes)


def split(part: str) -> range:
  """The indices of the members for "train" (24) or "test" (8).

  Raises:
    ExtractionError: another part.
  """
  if part not in _PARTS:
    raise ExtractionError(
      f"unknown part {part!r} of a family: choose from {', '.join(_PARTS)}"
    )
  return _PARTS[part]


NAME = "nmt_family"
# Every pair is one member. Placeto gives no values; chosen for graphs of about
# one to five thousand ops.
LENGTHS = (4, 6, 8, 10, 12, 14, 16, 18)
BATCH_SIZES = (16, 32, 64, 128)


def sizes(index: int) -> dict[str, int]:
  """Length and batch of a member, in an order that mixes both.

  Raises:
    ExtractionError: no such member.
  """
  generator(NAME, index)  # refuses an index out of range
  order = generator(NAME, 0).permutation(MEMBERS)
  pairs = list(itertools.product(LENGTHS, BATCH_SIZES))
  length, batch_size = pairs[order[index]]
  return {"length": length, "batch_size": batch_size}


# (Name in the zoo, sizes that differ from its defaults.)
TRAINING_SPLIT: tuple[tuple[str, Mapping[str, int]], ...] = (
  ("rnnlm", {"layers": 1, "length": 30}),
  ("rnnlm", {"layers": 3, "length": 20}),
  ("rnnlm", {"layers": 3, "length": 32}),
  ("rnnlm", {"layers": 5, "length": 16}),
  ("rnnlm", {"layers": 6, "length": 14}),
  ("gnmt", {"layers": 3, "length": 12}),
  ("gnmt", {"layers": 3, "length": 18}),
  ("gnmt", {"layers": 5, "length": 10}),
  ("gnmt", {"layers": 6, "length": 8}),
  ("transformer_xl", {"layers": 3, "segments": 4}),
  ("transformer_xl", {"layers": 5, "segments": 3}),
  ("transformer_xl", {"layers": 6, "segments": 2}),
  ("inception_v3", {"image_size": 139}),
)


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
  """The normal and the reduction cell of a member of `cifar10`.

  Of the micro search space of ENAS (Pham et al., arXiv 1802.03268): five sums,
  each of two earlier states through two of five operations.

  Raises:
    ExtractionError: no such member.
  """
  rng = generator("cifar10", index)
  return _draw_cell(rng), _draw_cell(rng)


def _draw_cell(rng: np.random.Generator) -> Cell:
  """A cell whose output is the states that no sum uses."""

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
  """Member `index` of the family `cifar10`: a network of ENAS' cells.

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
