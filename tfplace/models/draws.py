"""What the members of a synthetic family draw from: an index, nothing else."""

import zlib

import numpy as np

from tfplace.errors import ExtractionError

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
