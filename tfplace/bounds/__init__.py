"""Proven lower bounds of a step, tighter than the simple one of the formats."""

from tfplace.bounds.bound import (
  Bound,
  lower_bound,
  tightened,
  tightened_within,
)

__all__ = ["Bound", "lower_bound", "tightened", "tightened_within"]
