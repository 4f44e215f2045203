"""Proven bounds: the least step time and the memory that is missing."""

from tfplace.bounds.bound import (
  Bound,
  lower_bound,
  tightened,
  tightened_within,
  warm_up,
)
from tfplace.bounds.memory import check_memory

__all__ = [
  "Bound",
  "check_memory",
  "lower_bound",
  "tightened",
  "tightened_within",
  "warm_up",
]
