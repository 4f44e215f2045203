"""Costs from measurements: op times of a run, and a link's rate. NumPy only.

`with_measured_times` refines a graph that has estimates, `MeasuredCosts` is the
same as a cost model, and `fit_link` fits the rate of a link to timed transfers.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfplace.core.op_graph import OpGraph
from tfplace.core.protocols import OpCosts
from tfplace.cost import registry
from tfplace.errors import MeasurementError

_ROUNDS = 50  # of reweighting; it settles in a few


class LinkFit(NamedTuple):
  """A link's cost: a transfer takes bytes / bandwidth + latency."""

  bandwidth_bytes_per_us: float
  latency_us: float


class MeasuredCosts:
  """A cost model of op times from a run; estimates scaled for the others.

  Args:
    times_us: device kind -> op name -> microseconds, as of `measure.Profile`.
    base: cost model of the estimates.
  """

  name = "measured"

  def __init__(
    self,
    times_us: Mapping[str, Mapping[str, float]],
    base: str = registry.DEFAULT,
  ) -> None:
    self._times_us = times_us
    self._base = registry.get_cost_model(base)

  def op_costs(self, step: Any) -> OpCosts:
    """The base's costs with measured times in place of estimates.

    Raises:
      MeasurementError: as of `with_measured_times`.
    """
    costs = self._base.op_costs(step)
    graph = costs.fill(step.graph)
    for kind, times in self._times_us.items():
      graph = with_measured_times(graph, kind, times)
    return OpCosts(graph.time_us, costs.temp_bytes, costs.extra)


def with_measured_times(
  graph: OpGraph, kind: str, times_us: Mapping[str, float]
) -> OpGraph:
  """A copy of the graph with measured times in place of estimates.

  Ops that the run did not time keep their estimate, scaled by the median
  ratio of measured to estimated time of those that it did: an estimate of
  Grappler's is proportional to the time at best. Ops that the kind cannot run,
  or that take no time, stay as they are; names that the graph lacks (TensorFlow
  rewrites graphs before it runs them) are ignored.

  Args:
    graph: with estimated times.
    kind: device kind that was measured.
    times_us: op name -> microseconds.

  Raises:
    MeasurementError: a time is negative or not finite, or no op of the graph
      was timed.
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
  return dataclasses.replace(graph, time_us={**graph.time_us, kind: times})


def fit_link(
  sizes_bytes: Sequence[float], times_us: Sequence[float]
) -> LinkFit:
  """Bandwidth and latency of a link from timed transfers.

  A line by iteratively reweighted least squares with weights that make it
  minimise relative absolute deviations: a transfer that something else held
  up counts little, and small transfers count as much as large ones.

  Args:
    sizes_bytes: of each transfer, at least two different ones.
    times_us: of each transfer.

  Raises:
    MeasurementError: too few sizes, values that are no times, or times that do
      not grow with size.
  """
  sizes = np.asarray(sizes_bytes, np.float64)
  times = np.asarray(times_us, np.float64)
  if sizes.shape != times.shape or sizes.ndim != 1:
    raise MeasurementError(
      f"{sizes.shape} sizes of transfers for {times.shape} times"
    )
  if not (np.isfinite(sizes).all() and np.isfinite(times).all()):
    raise MeasurementError("a transfer's size or time is not finite")
  if len(np.unique(sizes)) < 2 or times.min() <= 0:
    raise MeasurementError(
      f"a link needs transfers of two sizes and times above 0, not sizes"
      f" {sizes.tolist()} in {times.tolist()} us"
    )
  slope, latency = _robust_line(sizes, times)
  if latency < 0:  # then through the origin
    slope, latency = _slope_through_origin(sizes, times), 0.0
  if slope <= 0:
    raise MeasurementError(
      f"transfers of {sizes.min():g} to {sizes.max():g} bytes took no longer"
      " the larger they were: time more or larger ones"
    )
  return LinkFit(1.0 / slope, latency)


def _slope_through_origin(x: np.ndarray, y: np.ndarray) -> float:
  """The median of y / x by weights x: small transfers tell little of a rate."""
  order = np.argsort(y[x > 0] / x[x > 0])
  weights = x[x > 0][order]
  middle = np.searchsorted(np.cumsum(weights), weights.sum() / 2)
  return float((y[x > 0] / x[x > 0])[order][middle])


def _robust_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
  """Slope and offset with the least sum of |error| / y."""
  matrix = np.stack([x / x.max(), np.ones_like(x)], axis=1) / y[:, None]
  weights = np.ones_like(y)
  solution = np.zeros(2)
  for _ in range(_ROUNDS):
    rooted = np.sqrt(weights)
    solution, *_ = np.linalg.lstsq(matrix * rooted[:, None], rooted, rcond=None)
    errors = np.abs(matrix @ solution - 1.0)
    weights = 1.0 / np.maximum(errors, 1e-6)
  return float(solution[0] / x.max()), float(solution[1])
