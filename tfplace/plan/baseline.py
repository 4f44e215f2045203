"""Baselines of placed steps: their figures by layer, and what grew since."""

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tfplace.core.baseline import Baseline, DevicePeak, LayerCost
from tfplace.core.cluster import Cluster
from tfplace.core.evaluation import ROUNDING, Evaluation
from tfplace.core.microbatches import microbatches_of
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import TfplaceError, shown
from tfplace.formats.cluster import cluster_to_json
from tfplace.placers.replan import carried_over
from tfplace.plan.layer_sums import held_at_peak, layer_labels
from tfplace.plan.variants import in_words
from tfplace.simulate import Schedule, Simulator

_MOST_TRIED = 8  # Layers that are simulated with their former costs.


@dataclasses.dataclass(frozen=True)
class Growth:
  """A figure that grew by more than the tolerance, and the layer behind it.

  Attributes:
    device: device whose peak memory grew; None for the step time.
    before: the figure of the baseline, in microseconds or bytes.
    now: the figure of the placed step.
    layer: cost of the layer that grew most; None if no layer grew.
    layer_before: its cost in the baseline; None if the layer is new.
  """

  device: str | None
  before: float
  now: float
  layer: LayerCost | None
  layer_before: LayerCost | None

  @property
  def share(self) -> float:
    """Returns the growth as a share of the former figure."""
    return _growth(self.before, self.now)


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A placed step beside its baseline.

  Attributes:
    evaluation: the step that was compared.
    growths: figures that grew by more than the tolerance: the step time, then
      the peaks of devices, the worst first.
  """

  evaluation: Evaluation
  growths: tuple[Growth, ...]


def make_baseline(placement: Placement, strategy: str, seed: int) -> Baseline:
  """Simulates a placement and returns its figures by device and layer."""
  problem = placement.problem
  graph, cluster = problem.graph, problem.cluster
  schedule = Simulator(problem).schedule(placement)
  return Baseline(
    graph=graph.name,
    cluster=cluster.name,
    cluster_digest=_digest(cluster),
    strategy=strategy,
    seed=seed,
    variant=in_words(microbatches_of(graph.names)),
    order=problem.order,
    **_told(graph.extra),
    step_time_us=schedule.step_time_us,
    devices=tuple(
      DevicePeak(device.name, peak, device.memory_bytes)
      for device, peak in zip(
        cluster.devices, schedule.peak_memory_bytes.tolist(), strict=True
      )
    ),
    layers=layer_costs(schedule),
    assignments=placement.assignments,
  )


def _told(extra: Mapping[str, Any]) -> dict[str, Any]:
  """Returns what a graph says of its costs and step, unless it is invalid."""
  batch, training = extra.get("batch_size"), extra.get("training")
  costs = extra.get("costs")
  is_count = isinstance(batch, int) and not isinstance(batch, bool)
  return {
    "costs": costs if isinstance(costs, str) else "",
    "training": training if isinstance(training, bool) else None,
    "batch_size": batch if is_count else None,
  }


def _digest(cluster: Cluster) -> str:
  """Returns a digest of all that a cluster file says."""
  text = json.dumps(cluster_to_json(cluster), sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def layer_costs(schedule: Schedule) -> tuple[LayerCost, ...]:
  """Sums time, traffic and memory of a simulated step by layer."""
  placement, sent = schedule.placement, schedule.transfers
  problem, devices = placement.problem, placement.devices
  graph, cluster = problem.graph, problem.cluster
  labels = layer_labels(graph)
  numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
  layer_of = np.array([numbers[label] for label in labels], np.int64)
  count = len(numbers)
  time_us = problem.time_us[np.arange(graph.num_ops), devices]
  overhead_us = np.array([d.op_overhead_us for d in cluster.devices])[devices]
  taken_us = time_us + np.where(time_us > 0, overhead_us, 0.0)
  time_of = np.bincount(layer_of, taken_us, count)
  sent_of = np.bincount(layer_of[sent.src_op], sent.num_bytes, count)
  held_of = np.stack(
    [_held(schedule, d, layer_of, count) for d in range(cluster.num_devices)]
  )
  return tuple(
    LayerCost(
      name,
      float(time_of[i]),
      float(sent_of[i]),
      {
        cluster.devices[d].name: float(held_of[d, i])
        for d in np.flatnonzero(held_of[:, i]).tolist()
      },
    )
    for name, i in numbers.items()
  )


def _held(
  schedule: Schedule, device: int, layer_of: np.ndarray, count: int
) -> np.ndarray:
  """Returns [num_layers] bytes that a device holds at its peak."""
  graph, blocks = schedule.placement.problem.graph, schedule.blocks
  _, held = held_at_peak(schedule, device)
  here = np.flatnonzero(schedule.placement.devices == device)
  always = graph.persistent_bytes[here]
  return np.bincount(layer_of[here], always, count) + np.bincount(
    layer_of[blocks.op[held]], blocks.num_bytes[held], count
  )


def check_same(baseline: Baseline, problem: Problem) -> None:
  """Checks that a step is the one that a baseline was taken of.

  Raises:
    TfplaceError: model, batch size, cluster or costs differ. The message names
      the first difference.
  """
  graph, cluster = problem.graph, problem.cluster
  told = _told(graph.extra)
  pairs = {
    "graph": (baseline.graph, graph.name),
    "cluster": (baseline.cluster, cluster.name),
    "batch size": (baseline.batch_size, told["batch_size"]),
    "training": (baseline.training, told["training"]),
    "costs": (baseline.costs, told["costs"]),
  }
  for what, (before, now) in pairs.items():
    if before != now:
      raise _other(f"{what} {shown(before)}, and this step has {shown(now)}")
  # The links of real devices are measured anew at each start, and their memory
  # is a little more or less.
  is_live = told["costs"] == "measured"
  memory = {d.name: d.memory_bytes for d in baseline.devices}
  found = {d.name: d.memory_bytes for d in cluster.devices}
  for name in sorted({*memory, *found}):
    size, size_now = memory.get(name), found.get(name)
    if size != size_now and not (is_live and size and size_now):
      raise _other(
        f"device {shown(name)} with {_size(size)}, and cluster"
        f" {shown(cluster.name)} has it with {_size(size_now)}"
      )
  if baseline.cluster_digest != _digest(cluster) and not is_live:
    raise _other(
      f"cluster {shown(cluster.name)} with other devices or links than it has"
    )
  if graph.num_ops and not any(
    op in graph.index for op in baseline.assignments
  ):
    raise _other(f"other ops: it has none of graph {shown(graph.name)}")


def _other(difference: str) -> TfplaceError:
  return TfplaceError(
    f"the baseline is of {difference}; compare the same step, or write a new"
    " baseline"
  )


def _size(memory_bytes: float | None) -> str:
  if memory_bytes is None:
    return "none"
  if math.isinf(memory_bytes):
    return "unlimited memory"
  return f"{memory_bytes:.0f} bytes"


def compare(
  baseline: Baseline, found: Placement, tolerance: float
) -> Comparison:
  """Compares a placed step with its baseline.

  A search may find a placement of the same speed that needs more memory. So
  the baseline's placement, carried over to the step, is compared as well, and
  the step passes if either does. Of two that fail, the one that grew less
  counts.

  Args:
    baseline: baseline of the same step; see `check_same`.
    found: placement of the step.
    tolerance: share by which the step time and the peak memory of each device
      may grow.
  """
  judged: list[tuple[Placement, Evaluation]] = []
  for placement in (found, *_carried(baseline, found.problem)):
    evaluation = Simulator(placement.problem).evaluate([placement])[0]
    if evaluation.feasible or not judged:
      judged.append((placement, evaluation))
    if _worst(baseline, evaluation) <= _limit(tolerance):
      return Comparison(evaluation, ())
  placement, evaluation = min(judged, key=lambda x: _worst(baseline, x[1]))
  schedule = Simulator(placement.problem).schedule(placement)
  growths = [
    _explained(baseline, schedule, device, before, now)
    for device, before, now in _figures(baseline, evaluation)
    if _growth(before, now) > _limit(tolerance)
  ]
  growths.sort(key=lambda growth: (growth.device is not None, -growth.share))
  return Comparison(evaluation, tuple(growths))


def _limit(tolerance: float) -> float:
  return tolerance + ROUNDING


def _growth(before: float, now: float) -> float:
  if before > 0:
    return now / before - 1
  return math.inf if now > 0 else 0.0


def _figures(
  baseline: Baseline, evaluation: Evaluation
) -> Iterator[tuple[str | None, float, float]]:
  """Yields the step time and each device's peak, before and now."""
  yield None, baseline.step_time_us, evaluation.step_time_us
  for device in baseline.devices:
    now = evaluation.peak_memory_bytes[device.name]
    yield device.name, device.peak_memory_bytes, now


def _worst(baseline: Baseline, evaluation: Evaluation) -> float:
  return max(_growth(x, y) for _, x, y in _figures(baseline, evaluation))


def _carried(baseline: Baseline, problem: Problem) -> list[Placement]:
  """Returns the baseline's placement on a problem, in all guesses."""
  ordered = problem.in_order(baseline.order)
  found = []
  with contextlib.suppress(TfplaceError):  # No op or no link is left.
    for row in carried_over(ordered, baseline.assignments):
      found.append(Placement(ordered, row))
  return found


def _explained(
  baseline: Baseline,
  schedule: Schedule,
  device: str | None,
  before: float,
  now: float,
) -> Growth:
  """Finds the layer behind the growth of a figure."""
  known = {layer.name: layer for layer in baseline.layers}
  layers = layer_costs(schedule)
  if device is None:
    layer = _slowest(schedule, known, layers)
  else:
    layer = _largest(device, known, layers)
  was = None if layer is None else known.get(layer.name)
  return Growth(device, before, now, layer, was)


def _largest(
  device: str, known: Mapping[str, LayerCost], layers: tuple[LayerCost, ...]
) -> LayerCost | None:
  """Returns the layer that holds the most further bytes on a device."""

  def further(layer: LayerCost) -> float:
    was = known.get(layer.name, LayerCost(layer.name))
    return layer.held_bytes.get(device, 0.0) - was.held_bytes.get(device, 0.0)

  layer = max(layers, key=further, default=None)
  return layer if layer is not None and further(layer) > 0 else None


def _slowest(
  schedule: Schedule,
  known: Mapping[str, LayerCost],
  layers: tuple[LayerCost, ...],
) -> LayerCost | None:
  """Returns the layer whose growth made the step longer.

  Each layer that grew much is simulated with its former time and traffic; the
  one without whose growth the step is shortest counts. Among equals it is the
  one that grew most.
  """

  def further(layer: LayerCost) -> tuple[float, float]:
    was = known.get(layer.name, LayerCost(layer.name))
    more_us = layer.time_us - was.time_us
    more_bytes = layer.sent_bytes - was.sent_bytes
    is_rounding = more_us <= ROUNDING * layer.time_us
    return 0.0 if is_rounding else more_us, max(0.0, more_bytes)

  grown = [layer for layer in layers if any(further(layer))]
  tried = [
    *sorted(grown, key=lambda x: -further(x)[0])[:_MOST_TRIED],
    *sorted(grown, key=lambda x: -further(x)[1])[:_MOST_TRIED],
  ]
  without_us = {
    layer.name: _step_without_growth(schedule, layer, known.get(layer.name))
    for layer in tried
  }
  return min(
    tried,
    key=lambda x: (without_us[x.name], *(-more for more in further(x))),
    default=None,
  )


def _step_without_growth(
  schedule: Schedule, layer: LayerCost, was: LayerCost | None
) -> float:
  """Returns the step time if a layer had its former time and traffic."""
  placement = schedule.placement
  problem, graph = placement.problem, placement.problem.graph
  former = was or LayerCost(layer.name)
  here = np.array([label == layer.name for label in layer_labels(graph)])
  time_share = np.where(here, _share(former.time_us, layer.time_us), 1.0)
  size_share = np.where(here, _share(former.sent_bytes, layer.sent_bytes), 1.0)
  sizes = np.repeat(size_share, np.diff(graph.output_offsets))
  changed = dataclasses.replace(
    graph,
    time_us={kind: us * time_share for kind, us in graph.time_us.items()},
    output_bytes=graph.output_bytes * sizes,
  )
  changed_problem = Problem(changed, problem.cluster, order=problem.order)
  changed_step = Placement(changed_problem, placement.devices)
  return Simulator(changed_problem).evaluate([changed_step])[0].step_time_us


def _share(before: float, now: float) -> float:
  return min(1.0, before / now) if now > 0 else 1.0
