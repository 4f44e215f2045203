"""Placement algorithms, the strategy registry, and `auto`."""

from tfplace.core.budget import Budget
from tfplace.core.evaluation import HistoryPoint, Result
from tfplace.core.protocols import Evaluator, Placer
from tfplace.placers.place import place, warm_up
from tfplace.placers.registry import LEARNED, READY, STRATEGIES, get_placer
