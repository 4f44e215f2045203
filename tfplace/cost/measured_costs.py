"""Measured op times in place of estimates, and their noise (NumPy only)."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from tfplace.errors import MeasurementError
from tfplace.graph.op_graph import ESTIMATED, OpGraph

STEP_NOISE = "step_noise"  # key of `OpGraph.extra`
# Normal samples: the quartiles are so many standard deviations apart, and the
# median has so many times the standard error of the mean.
_QUARTILES_APART, _MEDIAN_TO_MEAN = 1.349, math.sqrt(math.pi / 2)


def step_noise(step_us: Sequence[float]) -> float:
  """Returns the relative standard error of the median of repeated steps.

  Measured costs add up to that median, so predictions are no more accurate. The
  deviation comes from the quartiles, which single slow steps do not affect. The
  error of fewer than two steps is unknown and returned as 0.

  Args:
    step_us: [num_steps] step times.
  """
  if len(step_us) < 2:
    return 0.0
  low, median, high = np.percentile(step_us, [25, 50, 75])
  if not (median > 0 and math.isfinite(high)):
    return 0.0
  deviation = (high - low) / _QUARTILES_APART
  return float(deviation * _MEDIAN_TO_MEAN / math.sqrt(len(step_us)) / median)


def noise_of(graph: OpGraph) -> float:
  """Returns the relative noise of a graph's costs; 0 for estimates."""
  noise = graph.extra.get(STEP_NOISE, 0.0)
  known = isinstance(noise, int | float) and not isinstance(noise, bool)
  return float(noise) if known and 0 <= noise < math.inf else 0.0


def with_measured_times(
  graph: OpGraph, kind: str, times_us: Mapping[str, float]
) -> OpGraph:
  """Replaces a graph's estimated times by measured ones.

  Ops without a measurement keep their estimate, scaled by the median ratio of
  measured to estimated time, because estimates are proportional to times at
  best; `ESTIMATED` in their `op_extra` lists the kind. Ops that the kind cannot
  run or that take no time are unchanged. Names that the graph lacks are
  ignored, because TensorFlow rewrites graphs.

  Args:
    times_us: op name -> microseconds.

  Raises:
    MeasurementError: a time is negative or not finite, or no op was timed.
  """
  for name, time_us in times_us.items():
    if not (np.isfinite(time_us) and time_us >= 0):
      raise MeasurementError(
        f"op {name!r} was measured at {time_us} us on {kind}", op=name
      )
  estimates = graph.time_us.get(kind, np.full(graph.num_ops, np.nan))
  measured = np.array([times_us.get(name, np.nan) for name in graph.names])
  measured[np.isnan(estimates)] = np.nan
  known = ~np.isnan(measured)
  if not known.any():
    raise MeasurementError(
      f"graph {graph.name!r}: none of its {graph.num_ops} ops is among the"
      f" {len(times_us)} measured on {kind}"
    )
  both = known & (estimates > 0) & (measured > 0)
  ratio = 1.0
  if both.any():
    ratio = float(np.median(measured[both] / estimates[both]))
  times = np.where(known, measured, estimates * ratio)
  extra = dict(graph.op_extra)
  for op in np.flatnonzero(~known & (estimates > 0)).tolist():
    kinds = {*extra.get(op, {}).get(ESTIMATED, []), kind}
    extra[op] = {**extra.get(op, {}), ESTIMATED: sorted(kinds)}
  return dataclasses.replace(
    graph, time_us={**graph.time_us, kind: times}, op_extra=extra
  )
