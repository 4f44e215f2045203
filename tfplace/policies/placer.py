"""`gdp`: a trained policy as a placer, zero-shot; needs the base install."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from tfplace.errors import PlacementError
from tfplace.graph.problem import Problem
from tfplace.placers.base import Budget, Evaluator, Result
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker
from tfplace.policies import exported, features, sampling, symmetry
from tfplace.policies.decisions import Decisions, group_decisions

# Passes of the policy: at most so many decisions, and whether it sees the best
# placement so far. Coarse decisions make few transfers, fine ones balance
# better, and which serve a graph shows only there; a hinted pass improves on
# what is there.
PASSES = (
  *((12, False), (24, False), (48, False), (128, False)),
  *((64, True), (256, True)),
)


@dataclasses.dataclass(frozen=True, eq=False)
class GdpPlacer:
  """Places a graph by one pass of a GDP policy per level, without training.

  Attributes:
    policy: directory of an exported policy; None is the one that ships.
    samples: placements drawn per level, besides the most probable one.
    start: [num_ops] devices of a placement to improve on, that of a classical
      placer, say; it is not among the results.
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
    classes = symmetry.device_classes(problem.cluster)
    rng = np.random.default_rng(seed)
    for decisions, is_hinted in self._passes(problem):
      known = self.start
      if known is None and tracker.best is not None:
        known = tracker.best[0]
      if is_hinted and known is not None:
        # The policy has its own names for devices that are alike.
        hint = decisions.to_choices(known)
        names = symmetry.first_use_names(hint, classes)
        hinted = features.extract(decisions, names[hint], policy.axes)
        logits = policy.logits(hinted)[:, names]
      else:
        logits = policy.logits(features.extract(decisions, axes=policy.axes))
      first, *others = candidates(decisions, logits, self.samples, rng)
      offer_like(tracker, groups, first)
      for devices in others:
        if _is_spent(tracker):
          break
        _offer(tracker, devices)
      if _is_spent(tracker):
        break
    return tracker.result()

  def _passes(self, problem: Problem) -> Iterator[tuple[Decisions, bool]]:
    """Decisions and whether to hint; where nothing merges, every group decides.

    On a graph of a dozen groups two passes remain: without a hint, and with.
    """
    done = set()
    for most, is_hinted in PASSES:
      size = most if most < problem.num_groups else None
      if (size, is_hinted) not in done:
        done.add((size, is_hinted))
        yield group_decisions(problem, size), is_hinted


def candidates(
  decisions: Decisions,
  logits: np.ndarray,
  samples: int,
  rng: np.random.Generator,
) -> list[np.ndarray]:
  """[num_ops] devices each: the most probable placement, then samples."""
  drawn = sampling.sample(logits, samples, rng, decisions.clusterings)
  first = logits.argmax(axis=1).astype(np.int32)
  return [decisions.to_devices(choices) for choices in (first, *drawn)]


def _offer(tracker: Tracker, devices: np.ndarray) -> None:
  try:
    tracker.offer(devices)
  except PlacementError:
    return


def _is_spent(tracker: Tracker) -> bool:
  budget = tracker.budget
  if budget.left_s <= 0:
    return True
  limit = budget.max_evaluations
  return limit is not None and tracker.evaluations >= limit
