"""Placement algorithms, the strategy registry, and `auto`."""

from tfplace.core.protocols import (
  Budget,
  Evaluator,
  HistoryPoint,
  Placer,
  Result,
)
from tfplace.placers.place import place, warm_up
from tfplace.placers.registry import LEARNED, READY, STRATEGIES, get_placer
