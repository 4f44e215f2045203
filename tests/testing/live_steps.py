"""A `LiveStep` with a simulator in the devices' place."""

import dataclasses
import math

import numpy as np

from tfplace.simulate import Simulator


class Devices:
  """Runs placements by the true costs; a step takes `rate` times as long."""

  def __init__(self, true, rate=1.0, run_s=math.inf, refit=None):
    self.simulator = Simulator(true)
    self.run_s = run_s
    self.ran = []
    self._rate, self._refit = rate, refit

  def true_us(self, row):
    rows = np.array([row], np.int32)
    return self.simulator.evaluate(rows)[0].step_time_us

  def harness(self, problem, *, on_stage, measure_s):
    return self

  def evaluate(self, placements):
    self.ran += [tuple(p.devices.tolist()) for p in placements]
    return [
      dataclasses.replace(
        e, source="measured", step_time_us=self._rate * e.step_time_us
      )
      for e in self.simulator.evaluate(list(placements))
    ]

  def refitted(self, problem, placements, measured):
    if self._refit is None:
      return problem
    return self._refit(problem, placements, measured)
