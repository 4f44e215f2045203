"""Achieved share of the data-sheet peak (model FLOPs utilization, MFU).

MFU is the time that the step's matrix products and convolutions take at the
peak of their precision, over the step time (Chowdhery et al., PaLM, 2022).
"""

import numpy as np

from tfplace.simulate import Schedule


def peak_shares(schedule: Schedule) -> np.ndarray:
  """Returns [num_devices] share of each device's peak.

  Devices that run no op or whose peak is unknown have NaN.
  """
  placement = schedule.placement
  graph, cluster = placement.problem.graph, placement.problem.cluster
  shares = np.full(cluster.num_devices, np.nan)
  for i, device in enumerate(cluster.devices):
    if device.kind in graph.peak_us and schedule.busy_us[i] > 0:
      at_peak_us = graph.peak_us[device.kind][placement.devices == i].sum()
      shares[i] = at_peak_us / schedule.step_time_us
  return shares


def utilization(shares: np.ndarray) -> float | None:
  """Returns the mean share of the devices that have one, else None."""
  known = shares[~np.isnan(shares)]
  return float(known.mean()) if known.any() else None
