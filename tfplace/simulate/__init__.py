"""The exact simulator of a placed step."""

from tfplace.simulate.batch import Batch
from tfplace.simulate.critical_path import Segment
from tfplace.simulate.memory import MemoryCurve
from tfplace.simulate.schedule import Schedule, Transfers
from tfplace.simulate.simulator import Simulator

__all__ = [
  "Batch",
  "MemoryCurve",
  "Schedule",
  "Segment",
  "Simulator",
  "Transfers",
]
