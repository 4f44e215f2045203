"""Step times within the errors of kernel costs.

A class of kernels is too fast or too slow on a card as a whole. Each sample
multiplies its times by one log-normal factor for each kind of device, and so
the gaps between launches and the links. A placed step is simulated for every
sample. Placements share the samples, so errors that they have in common cancel
when they are compared.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfplace.cost.kernels import parameters
from tfplace.cost.measured_costs import STEP_NOISE
from tfplace.graph.cluster import Device
from tfplace.graph.evaluation import GIVEN, Evaluation, Result
from tfplace.graph.op_graph import UNIT, OpGraph
from tfplace.graph.problem import Problem
from tfplace.graph.quantities import format_share, time_scale
from tfplace.hardware.hardware import GPUS
from tfplace.simulate import Simulator

SAMPLES = 64
_SEED = 0
INTERVAL = (10, 90)  # percentiles
_NEAR = 1.02  # of the best step time: plans that samples choose from
# Strategies that a plan is compared with, the first of the results that exists.
_RIVALS = {"data_parallel": "data parallelism", "single": "one device"}

# Standard deviations of logarithms; docs/costs.md says what each was set on.
_MEMORY, _PRODUCT, _CONVOLUTION, _UNIT, _GAP = range(5)
_WIDTHS = (0.15, 0.12, 0.23, 0.25, 0.4)
_LINKS = 0.25
_CPU = 0.7  # a factor of two: nothing compares Grappler's estimates with CPUs
# Errors on a GPU whose compute capability was not fitted, over those on others
# (docs/results.md).
_UNFITTED = np.array((1.0, 2.0, 1.0, 1.0, 1.0))


def surest(result: Result) -> Result:
  """Prefers a placement that `auto` tried and that wins in most samples.

  Only placements within `_NEAR` of the result's step time compete, and none
  that is slower than a given one. Ties go to the result, also where errors are
  unknown.
  """
  most_us = _NEAR * result.evaluation.step_time_us
  for tried in result.tried:
    if tried.strategy == GIVEN:
      most_us = min(most_us, tried.evaluation.step_time_us)
  near = [result]
  for other in result.tried:
    is_near = other.evaluation.step_time_us <= most_us
    is_new = all(
      (other.placement.devices != known.placement.devices).any()
      for known in near
    )
    if is_near and is_new and other.order == result.order:
      near.append(other)
  if len(near) == 1:
    return result
  devices = np.stack([one.placement.devices for one in near])
  step_us = sampled_step_us(result.placement.problem, devices)
  if step_us is None:
    return result
  wins = np.bincount(step_us.argmin(axis=1), minlength=len(near))
  best = near[int(wins.argmax())]
  return dataclasses.replace(
    result, placement=best.placement, evaluation=best.evaluation
  )


def with_intervals(results: Sequence[Result]) -> list[Result]:
  """Adds intervals to the first result, and compares it with its rival.

  Its evaluation gets `interval_us`, within which 80% of the samples are, and
  `samples_won`: the strategy of the rival -> share of the samples in which the
  first is faster, unless they are equal. Rivals get `interval_us`, too. Without
  known errors, nothing changes.

  Args:
    results: placements of one problem.
  """
  shown, names = [0], [result.strategy for result in results]
  for strategy in _RIVALS:
    if strategy in names[1:] and strategy != names[0]:
      shown.append(names.index(strategy))
  devices = np.stack([results[i].placement.devices for i in shown])
  step_us = sampled_step_us(results[0].placement.problem, devices)
  if step_us is None:
    return [*results]
  shown_results = [*results]
  for i, samples in zip(shown, step_us.T, strict=True):
    interval_us = np.percentile(samples, INTERVAL).tolist()
    extra: dict[str, Any] = {"interval_us": interval_us}
    if i == 0 and len(shown) > 1 and (samples != step_us[:, 1]).any():
      share = float((samples < step_us[:, 1]).mean())
      extra["samples_won"] = {results[shown[1]].strategy: share}
    evaluation = results[i].evaluation.with_extra(**extra)
    shown_results[i] = dataclasses.replace(results[i], evaluation=evaluation)
  return shown_results


def interval_in_words(evaluation: Evaluation) -> str:
  """Describes the interval of a step time, such as " (57 to 71)"; "" for none.

  It has the unit of the step time.
  """
  if "interval_us" not in evaluation.extra:
    return ""
  scale, _ = time_scale(evaluation.step_time_us)
  digits = (f"{us / scale:.3g}" for us in evaluation.extra["interval_us"])
  low, high = (f"{float(number):g}" for number in digits)
  return f" ({low} to {high})"


def comparison_in_words(evaluation: Evaluation) -> str:
  """Describes the comparison with the rival, as part of a sentence."""
  return ", ".join(
    f"faster than {_RIVALS[strategy]} in {format_share(share, 1)} of"
    f" {SAMPLES} samples of the errors of kernel costs"
    for strategy, share in evaluation.extra.get("samples_won", {}).items()
  )


def sampled_step_us(problem: Problem, devices: np.ndarray) -> np.ndarray | None:
  """Simulates placements for each sample of the costs.

  Args:
    devices: [num_placements, num_ops] device indices.

  Returns:
    [SAMPLES, num_placements] step times in microseconds. None where the errors
    of the costs are unknown: without a GPU, or if the costs were measured or
    are not those of the cost model "kernels".
  """
  kinds = {device.kind: device for device in problem.cluster.devices}
  extra = problem.graph.extra
  are_known = extra.get("costs") == "kernels" and STEP_NOISE not in extra
  if not are_known or all(device.is_cpu for device in kinds.values()):
    return None
  simulator = Simulator(problem)
  tables, of_op = simulator.tables, _classes(problem.graph)
  # [num_classes, num_kinds]; tables have kinds in this order.
  width = np.stack([_widths(kinds[kind]) for kind in sorted(kinds)], axis=1)
  normal = np.random.default_rng(_SEED).standard_normal
  result = np.empty((SAMPLES, len(devices)))
  for row in result:
    factor = np.exp(width * normal(width.shape))
    of_links = np.exp(_LINKS * normal())
    device, links = tables.devices.copy(), tables.links.copy()
    device["op_overhead_us"] *= factor[_GAP, device["kind"]]
    links["bandwidth"] /= of_links
    links["latency_us"] *= of_links
    times = tables.time_us * factor[of_op]
    sample = tables._replace(time_us=times, devices=device, links=links)
    row[:] = simulator.run(devices, tables=sample).step_time_us
  return result


def _classes(graph: OpGraph) -> np.ndarray:
  """Returns the [num_ops] class of each op."""
  types = np.array(graph.types)
  has_flops = sum(graph.peak_us.values(), np.zeros(graph.num_ops)) > 0
  classes = np.where(has_flops, _PRODUCT, _MEMORY)
  for prefix in ("Conv", "CudnnRNN"):  # Recurrent layers err as convolutions.
    classes[has_flops & np.char.startswith(types, prefix)] = _CONVOLUTION
  classes[types == UNIT] = _UNIT
  return classes


def _widths(device: Device) -> np.ndarray:
  """Returns the [num_classes] widths on a kind of device."""
  if device.is_cpu:
    return np.full(len(_WIDTHS), _CPU)
  # A device without a description counts as a V100.
  hardware = device.extra.get("hardware", GPUS["v100"].hardware)
  capability = float(hardware["environment"]["architecture"])
  is_fitted = capability in parameters.load().capabilities
  return np.array(_WIDTHS) * (1.0 if is_fitted else _UNFITTED)
