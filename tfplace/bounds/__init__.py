"""Proofs about every placement: the least time of a step, tighter than the
simple bound of the formats, and the memory that is lacking.
"""

from tfplace.bounds.bound import Bound, lower_bound, tightened, tightened_within
from tfplace.bounds.memory import check_memory

__all__ = [
  "Bound",
  "check_memory",
  "lower_bound",
  "tightened",
  "tightened_within",
]
