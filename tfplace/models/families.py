"""Synthetic families for pre-training and generalisation: 32 graphs each.

Placeto's three sets (arXiv 1906.08879): `cifar10` and `ptb` are random cells
of an architecture search, `nmt` a translation model in 32 sizes. Which graphs
Placeto had is not published; these are drawn here, by index. Members are real
models, also found in the zoo as `cifar10`, `ptb` and `nmt_family` with the
size `index`.
"""

from collections.abc import Mapping

from tfplace.errors import ExtractionError
from tfplace.models.draws import MEMBERS
from tfplace.models.zoo import ZooModel, build

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
