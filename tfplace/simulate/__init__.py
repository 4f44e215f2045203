"""The exact simulator of a placed step."""

from tfplace.simulate.batch import Batch
from tfplace.simulate.schedule import Schedule, Transfers
from tfplace.simulate.simulator import Simulator

__all__ = ["Batch", "Schedule", "Simulator", "Transfers"]
