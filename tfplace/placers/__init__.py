"""Placement algorithms, the registry of strategies, and `auto`."""

from tfplace.core.protocols import (
  Budget,
  Evaluator,
  HistoryPoint,
  Placer,
  Result,
)
from tfplace.placers.place import place
from tfplace.placers.registry import LEARNED, READY, STRATEGIES, get_placer
from tfplace.placers.warm_up import warm_up
