"""`gdp`: a trained policy as a placer, zero-shot; needs the base install."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfplace.core import symmetry
from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.errors import PlacementError
from tfplace.learned import exported, sampling
from tfplace.learned.decisions import Decisions, group_decisions
from tfplace.learned.gdp import features
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker

# Numbers of decisions of a policy's passes, besides those that it was trained
# at. Coarse decisions make few transfers, fine ones balance better, and which
# serve a graph shows only there.
SIZES = (12, 16, 24, 32, 48, 64)


@dataclasses.dataclass(frozen=True, eq=False)
class GdpPlacer:
  """Places a graph by one pass of a GDP policy per size, without training.

  Attributes:
    policy: directory of an exported policy; None is the one that ships.
    samples: placements drawn per size, besides the most probable one.
    start: [num_ops] devices of a placement, that of a classical placer, say,
      which a policy that was trained with hints sees and improves on; it is
      not among the results. None is the best that the placer has found so far,
      of which there is none in the first pass.
  """

  policy: str | None = None
  samples: int = 16
  start: np.ndarray | None = None
  name: ClassVar[str] = "gdp"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """The best of the most probable placements and of some samples.

    Raises:
      TrainingError: no policy is there, or it cannot be loaded.
      InfeasibleError: nothing that it tried fits in memory.
    """
    policy = exported.load_placers_policy(
      self.name, self.policy, features.VERSION
    )
    tracker = Tracker(self.name, problem, evaluator, budget)
    groups = GroupGraph(problem)
    rng = np.random.default_rng(seed)
    for decisions, is_hinted in _passes(problem, policy):
      known = None
      if is_hinted:
        known = self.start
        if known is None and tracker.best is not None:
          known = tracker.best[0]
      logits = _logits(policy, decisions, known)
      first, *others = candidates(decisions, logits, self.samples, rng)
      offer_like(tracker, groups, first)
      for devices in others:
        if tracker.is_done:
          break
        _offer(tracker, devices)
      if tracker.is_done:
        break
    return tracker.result()


def _passes(
  problem: Problem, policy: exported.Policy
) -> Iterator[tuple[Decisions, bool]]:
  """Decisions, and whether the policy sees a placement to improve on.

  Few decisions first: a pass over many takes the longest, and is not cut off.
  Sizes that merge nothing are passes, too, that draw anew: a small graph gets
  as many placements as a large one.
  """
  sizes = {*policy.decisions(), *SIZES}
  for size in sorted(sizes, key=lambda n: math.inf if n is None else n):
    decisions = group_decisions(problem, size)
    for is_hinted in policy.hints:
      yield decisions, is_hinted


def _logits(
  policy: exported.Policy, decisions: Decisions, known: np.ndarray | None
) -> np.ndarray:
  """[num_decisions, num_devices] logits of a policy that sees a placement,
  [num_ops] devices, or none."""
  if known is None:
    return policy.logits(features.extract(decisions, axes=policy.axes))
  # The policy has its own names for devices that are alike.
  classes = symmetry.device_classes(decisions.problem.cluster)
  hint = decisions.to_choices(known)
  names = symmetry.first_use_names(hint, classes)
  hinted = features.extract(decisions, names[hint], policy.axes)
  return policy.logits(hinted)[:, names]


def candidates(
  decisions: Decisions,
  logits: np.ndarray,
  samples: int,
  rng: np.random.Generator,
  temperatures: Sequence[float] = sampling.TEMPERATURES,
) -> list[np.ndarray]:
  """[num_ops] devices each: the most probable placement, then samples."""
  drawn = sampling.sample(
    logits, samples, rng, decisions.clusterings, temperatures
  )
  first = logits.argmax(axis=1).astype(np.int32)
  return [decisions.to_devices(choices) for choices in (first, *drawn)]


def _offer(tracker: Tracker, devices: np.ndarray) -> None:
  try:
    tracker.offer(devices)
  except PlacementError:
    return
