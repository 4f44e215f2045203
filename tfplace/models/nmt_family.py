"""The zoo's NMT in other lengths and batches: Placeto's `nmt` set."""

import itertools

from tfplace.models.draws import MEMBERS, generator

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
