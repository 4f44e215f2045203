"""GDP (arXiv 1910.01578): a graph network that makes all decisions at once."""

import contextlib
import dataclasses
import math
from typing import ClassVar

import numpy as np

from tfplace.errors import PlacementError
from tfplace.learned import Method, features, policies
from tfplace.learned.decisions import group_decisions
from tfplace.learned.policies import PolicyPlacer
from tfplace.learned.sampling import sample
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker

_SAMPLES = 16  # Per size, besides the most probable placement.
# Numbers of decisions to try besides those used in training. Few decisions make
# few transfers; many balance the load better.
_SIZES = (12, 16, 24, 32, 48, 64)
# Temperatures of equal shares of the samples. A policy can be confident and
# wrong; high-temperature samples follow it only where it is very confident.
_TEMPERATURES = (1.0, 5.0)


@dataclasses.dataclass(frozen=True, eq=False)
class GdpPlacer(PolicyPlacer):
  """Zero-shot placement by one pass of a GDP policy per size."""

  name: ClassVar[str] = "gdp"

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    problem = tracker.problem
    groups = GroupGraph.of(problem)
    # A long pass over many decisions is not interrupted, so it comes last.
    # Sizes that merge nothing are separate passes with new samples.
    for size in sorted(
      {*policy.decisions(), *_SIZES}, key=lambda n: n or math.inf
    ):
      decisions = group_decisions(problem, size)
      logits = policy.logits(features.extract(decisions, policy.axes))
      first = logits.argmax(axis=1).astype(np.int32)
      others = sample(
        logits,
        _SAMPLES,
        rng,
        groupings=decisions.groupings,
        temperatures=_TEMPERATURES,
      )
      offer_like(tracker, groups, decisions.to_devices(first))
      for choices in others:
        if tracker.is_done:
          return
        with contextlib.suppress(PlacementError):
          tracker.offer(decisions.to_devices(choices))
      if tracker.is_done:
        return


METHODS = {
  "gdp": Method("tfplace.learned.gdp:GdpPlacer", version=features.VERSION)
}
