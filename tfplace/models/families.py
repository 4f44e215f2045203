"""What the members of a synthetic family draw from: an index, nothing else.

Synthetic families for pre-training and generalisation: 32 graphs each.

Placeto's three sets (arXiv 1906.08879): `cifar10` and `ptb` are random cells
of an architecture search, `nmt` a translation model in 32 sizes. Which graphs
Placeto had is not published; these are drawn here, by index. Members are real
models, also found in the zoo as `cifar10`, `ptb` and `nmt_family` with the
size `index`.

The zoo's NMT in other lengths and batches: Placeto's `nmt` set.

The training split of the models: what a policy may be pre-trained on.

Models of the published tables in other sizes than any row has: other numbers
of layers, and shorter unrolls, so that one graph has some thousands of ops.
WaveNet, AmoebaNet and NASNet are not among them: they, and the family
`cifar10` if it is left out too, are what a pre-trained policy never saw."""

import itertools
import zlib
from collections.abc import Mapping

import numpy as np

from tfplace.errors import ExtractionError
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
