"""Placement algorithms, the strategy registry, and `auto`."""

from tfplace.graph.budget import Budget
from tfplace.graph.evaluation import HistoryPoint, Result
from tfplace.graph.protocols import Evaluator, Placer
from tfplace.placers.compilation import warm_up
from tfplace.placers.place import place
from tfplace.placers.registry import LEARNED, READY, STRATEGIES, get_placer
