"""A step on one device, and the fewest devices that hold it."""

import dataclasses
import math
from collections.abc import Collection

import numpy as np

from tfplace import placers
from tfplace.core.cluster import Cluster
from tfplace.core.estimate import SmallestFit
from tfplace.core.evaluation import Result
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.op_graph import OpGraph
from tfplace.core.order import AUTO
from tfplace.core.placement import Placement
from tfplace.errors import TfplaceError
from tfplace.placers.groups import GroupGraph
from tfplace.plan.estimate import cards
from tfplace.plan.estimate.cards import MAX_DEVICES, Card
from tfplace.simulate import Schedule, Simulator

# Placers of a step on several devices, tried in order, with a limit in seconds.
_STRATEGIES, _BUDGET_S = ("pipeline", "m_topo"), 5.0


@dataclasses.dataclass(frozen=True)
class OneDevice:
  """Simulation of a step on one device of a card.

  Attributes:
    schedule: all events; ops without a kernel for the card run elsewhere.
    device: index of the card's device.
    num_devices: devices of this kind that the card has.
  """

  schedule: Schedule
  device: int
  num_devices: int

  @property
  def peak_memory_bytes(self) -> float:
    """Peak of the card's device."""
    return float(self.schedule.peak_memory_bytes[self.device])

  @property
  def held_bytes(self) -> float:
    """Bytes that the card's device holds during the whole step."""
    placement = self.schedule.placement
    here = placement.devices == self.device
    return float(placement.problem.graph.persistent_bytes[here].sum())

  @property
  def least_devices(self) -> int:
    """Devices that the bytes held during the whole step need."""
    if math.isinf(self.memory_bytes):
      return 1
    return max(1, math.ceil(self.held_bytes / max(self.memory_bytes, 1.0)))

  @property
  def memory_bytes(self) -> float:
    """Memory of the card's device; infinite if unlimited."""
    cluster = self.schedule.placement.problem.cluster
    return float(cluster.memory_bytes[self.device])

  @property
  def fits(self) -> bool:
    """True if no device of the simulation exceeds its memory."""
    cluster = self.schedule.placement.problem.cluster
    peaks = self.schedule.peak_memory_bytes
    return bool((peaks <= cluster.memory_bytes).all())

  @property
  def share_of_peak(self) -> float | None:
    """MFU: time at the data-sheet peak over step time; None if unknown."""
    problem = self.schedule.placement.problem
    kind = problem.cluster.devices[self.device].kind
    at_peak_us = problem.graph.peak_us.get(kind)
    if at_peak_us is None or self.schedule.step_time_us <= 0:
      return None
    mine = self.schedule.placement.devices == self.device
    return float(at_peak_us[mine].sum()) / self.schedule.step_time_us


def on_one_device(graph: OpGraph, card: Card) -> OneDevice:
  """Simulates a step with everything on one device that can run there."""
  kind = card.one_kind(graph)
  cluster = card.with_devices(1, kind)
  problem = cards.on_cards_only(graph, cluster, (kind,))
  device = next(i for i, d in enumerate(cluster.devices) if d.kind == kind)
  groups = GroupGraph(problem)
  wanted = groups.nearest(np.full(groups.num_groups, device))
  placement = Placement(problem, groups.expand(wanted))
  number = sum(d.kind == kind for d in card.cluster.devices)
  return OneDevice(Simulator(problem).schedule(placement), device, number)


def smallest_fit(
  graph: OpGraph,
  card: Card,
  one: OneDevice,
  *,
  microbatches: MicrobatchConfig,
  variant: str,
  first: int = 1,
  below: int | None = None,
) -> SmallestFit | None:
  """Finds the fewest devices of a card for which a placer fits the step.

  Args:
    graph: the step with the card's costs.
    card: the card.
    one: the same step on one device of it.
    microbatches: microbatches of the step.
    variant: name of the step variant.
    first: fewest devices to try.
    below: tries fewer devices than this; by default all that the card has.

  Returns:
    The smallest fit, or None if no placement that fits was found.
  """
  most = min(MAX_DEVICES, one.num_devices)
  if below is not None:
    most = min(most, below - 1)
  kind = one.schedule.placement.problem.cluster.devices[one.device].kind
  for count in range(first, most + 1):
    if count == 1:
      found = _of_one(one)
    else:
      cluster = card.with_devices(count, kind)
      found = placed(graph, cluster, (kind,))
    if found is not None:
      strategy, step_time_us, peak = found
      return SmallestFit(
        variant=variant,
        num_devices=count,
        microbatches=microbatches.count,
        max_in_flight=microbatches.in_flight,
        strategy=strategy,
        step_time_us=step_time_us,
        peak_memory_bytes=peak,
      )
  return None


Found = tuple[str, float, float]  # Strategy, step time, peak of the fullest.


def _of_one(one: OneDevice) -> Found | None:
  if not one.fits:
    return None
  return "single", one.schedule.step_time_us, one.peak_memory_bytes


def placed(
  graph: OpGraph, cluster: Cluster, kinds: Collection[str]
) -> Found | None:
  """Places a step on several devices of some kinds by the cheap placers.

  Each placement is simulated; one that does not fit is None.
  """
  memory = sum(d.memory_bytes for d in cluster.devices if d.kind in kinds)
  if float(graph.persistent_bytes.sum()) > memory and not math.isinf(memory):
    return None
  problem = cards.on_cards_only(graph, cluster, kinds)
  for strategy in _STRATEGIES:
    try:
      found = placers.place(problem, strategy, _BUDGET_S, order=AUTO)
    except TfplaceError:  # Nothing fits, or the placer rejects the step.
      continue
    return strategy, found.evaluation.step_time_us, _fullest(found)
  return None


def _fullest(result: Result) -> float:
  return max(result.evaluation.peak_memory_bytes.values())
