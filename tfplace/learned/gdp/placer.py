"""Placer `gdp`: a trained policy, zero-shot (base install)."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.errors import PlacementError
from tfplace.learned import policies
from tfplace.learned.decisions import (
  Decisions,
  group_decisions,
  sample,
)
from tfplace.learned.encoder import features
from tfplace.learned.placer import PolicyPlacer
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True, eq=False)
class GdpPlacer(PolicyPlacer):
  """Zero-shot placement by one pass of a GDP policy per size.

  Attributes:
    samples: Samples per size, besides the most probable placement.
    sizes: Numbers of decisions to try besides those used in training. Few
      decisions make few transfers; many balance the load better.
    temperatures: Temperatures of equal shares of the samples. A policy can be
      confident and wrong; high-temperature samples follow it only where it is
      very confident.
  """

  samples: int = 16
  sizes: tuple[int, ...] = (12, 16, 24, 32, 48, 64)
  temperatures: tuple[float, ...] = (1.0, 5.0)
  name: ClassVar[str] = "gdp"

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    problem = tracker.problem
    groups = GroupGraph(problem)
    for decisions in self._passes(problem, policy):
      seen = features.extract(decisions, policy.axes)
      logits = policy.logits(seen)
      first, *others = candidates(
        decisions, logits, self.samples, rng, self.temperatures
      )
      offer_like(tracker, groups, first)
      for devices in others:
        if tracker.is_done:
          break
        with contextlib.suppress(PlacementError):
          tracker.offer(devices)
      if tracker.is_done:
        break

  def _passes(
    self, problem: Problem, policy: policies.Policy
  ) -> Iterator[Decisions]:
    """Yields the decisions of each pass, smallest sizes first.

    A long pass over many decisions is not interrupted, so it comes last. Sizes
    that merge nothing are separate passes with new samples.
    """
    sizes = {*policy.decisions(), *self.sizes}
    for size in sorted(sizes, key=lambda n: math.inf if n is None else n):
      yield group_decisions(problem, size)


def candidates(
  decisions: Decisions,
  logits: np.ndarray,
  samples: int,
  rng: np.random.Generator,
  temperatures: Sequence[float],
) -> list[np.ndarray]:
  """Returns the most probable placement and samples, [num_ops] each."""
  drawn = sample(logits, samples, rng, decisions.groupings, temperatures)
  first = logits.argmax(axis=1).astype(np.int32)
  return [decisions.to_devices(choices) for choices in (first, *drawn)]
