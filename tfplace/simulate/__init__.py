"""Exact event-driven simulation of a placed step."""

from tfplace.simulate.critical_path import Segment
from tfplace.simulate.engine import Batch
from tfplace.simulate.schedule import MemoryCurve, Schedule, Transfers
from tfplace.simulate.simulator import Simulator

__all__ = [
  "Batch",
  "MemoryCurve",
  "Schedule",
  "Segment",
  "Simulator",
  "Transfers",
]
