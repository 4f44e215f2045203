"""A step on one device, and the fewest devices that hold it."""

import dataclasses
import math
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from tfplace import placers
from tfplace.errors import TfplaceError
from tfplace.graph.argument_checks import AUTO
from tfplace.graph.cluster import Cluster
from tfplace.graph.estimate import SmallestFit
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.op_graph import OpGraph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers.groups import GroupGraph
from tfplace.plan.estimate.cards import MAX_DEVICES, Card, main_kind
from tfplace.simulate import Schedule, Simulator

# Placers of a step on several devices, tried in order, with a limit in seconds.
_STRATEGIES, _BUDGET_S = ("pipeline", "m_topo"), 5.0


@dataclasses.dataclass(frozen=True)
class OneDevice:
  """Simulation of a step on one device of a card.

  Attributes:
    graph: the step with the card's costs.
    schedule: all events; ops without a kernel for the card run elsewhere.
    device: index of the card's device.
    num_devices: devices of this kind that the card has, at most `MAX_DEVICES`.
  """

  graph: OpGraph
  schedule: Schedule
  device: int
  num_devices: int

  @property
  def problem(self) -> Problem:
    return self.schedule.placement.problem

  @property
  def kind(self) -> str:
    return self.problem.cluster.devices[self.device].kind

  @property
  def peak_memory_bytes(self) -> float:
    """Peak of the card's device."""
    return float(self.schedule.peak_memory_bytes[self.device])

  @property
  def memory_bytes(self) -> float:
    """Memory of the card's device; infinite if unlimited."""
    return float(self.problem.cluster.memory_bytes[self.device])

  @property
  def least_devices(self) -> int:
    """Devices that the bytes held during the whole step need."""
    here = self.schedule.placement.devices == self.device
    held = float(self.problem.graph.persistent_bytes[here].sum())
    return max(1, math.ceil(held / max(self.memory_bytes, 1.0)))

  @property
  def fits(self) -> bool:
    """True if no device of the simulation exceeds its memory."""
    memory = self.problem.cluster.memory_bytes
    return bool((self.schedule.peak_memory_bytes <= memory).all())

  @property
  def share_of_peak(self) -> float | None:
    """MFU: time at the data-sheet peak over step time; None if unknown."""
    at_peak_us = self.problem.graph.peak_us.get(self.kind)
    if at_peak_us is None or self.schedule.step_time_us <= 0:
      return None
    here = self.schedule.placement.devices == self.device
    return float(at_peak_us[here].sum()) / self.schedule.step_time_us


def on_one_device(graph: OpGraph, card: Card) -> OneDevice:
  """Simulates a step with everything on one device that can run there."""
  kind = card.kind or main_kind(graph, card.cluster)
  cluster = card.with_devices(1, kind)
  problem = on_cards_only(graph, cluster, (kind,))
  device = next(i for i, d in enumerate(cluster.devices) if d.kind == kind)
  groups = GroupGraph.of(problem)
  wanted = groups.nearest(np.full(groups.num_groups, device))
  placement = Placement(problem, groups.expand(wanted))
  number = sum(d.kind == kind for d in card.cluster.devices)
  schedule = Simulator(problem).schedule(placement)
  return OneDevice(graph, schedule, device, min(number, MAX_DEVICES))


class Fit(NamedTuple):
  """A placement that fits: its placer, step time and largest peak."""

  strategy: str
  step_time_us: float
  peak_memory_bytes: float


def smallest_fit(
  card: Card, one: OneDevice, config: VariantConfig, *, first: int, most: int
) -> SmallestFit | None:
  """Finds the fewest devices of a card, `first` to `most`, that hold a step.

  Returns None if no placement that fits was found.
  """
  for count in range(first, most + 1):
    fit = of_one(one)
    if count > 1:
      cluster = card.with_devices(count, one.kind)
      fit = placed(one.graph, cluster, (one.kind,))
    if fit is not None:
      return SmallestFit("", count, config.count, config.in_flight, *fit)
  return None


def of_one(one: OneDevice) -> Fit | None:
  """Returns the step on one device if it fits there."""
  if not one.fits:
    return None
  return Fit("single", one.schedule.step_time_us, one.peak_memory_bytes)


def placed(
  graph: OpGraph, cluster: Cluster, kinds: Collection[str]
) -> Fit | None:
  """Places a step on several devices of some kinds by the cheap placers.

  Each placement is simulated; one that does not fit is None.
  """
  memory = sum(d.memory_bytes for d in cluster.devices if d.kind in kinds)
  if float(graph.persistent_bytes.sum()) > memory:
    return None
  problem = on_cards_only(graph, cluster, kinds)
  for strategy in _STRATEGIES:
    try:
      result = placers.place(problem, strategy, budget_s=_BUDGET_S, order=AUTO)
    except TfplaceError:  # Nothing fits, or the placer rejects the step.
      continue
    evaluation = result.evaluation
    peak = max(evaluation.peak_memory_bytes.values())
    return Fit(strategy, evaluation.step_time_us, peak)
  return None


def on_cards_only(
  graph: OpGraph, cluster: Cluster, kinds: Collection[str]
) -> Problem:
  """Returns a problem whose other devices run only what a card cannot.

  Otherwise a step would "fit" on any card, with its weights in host memory.
  """
  problem = Problem(graph, cluster)
  is_card = [i for i, d in enumerate(cluster.devices) if d.kind in kinds]
  runs_here = np.any(problem.group_allowed[:, is_card], axis=1)
  stays = np.asarray(runs_here)[problem.group_of]
  time_us = {
    name: us if name in kinds else np.where(stays, np.nan, us)
    for name, us in graph.time_us.items()
  }
  return Problem(dataclasses.replace(graph, time_us=time_us), cluster)
