"""Placer `placeto`: rollouts of a trained Placeto policy (base install)."""

import dataclasses
import itertools
import sys
from typing import ClassVar

import numpy as np

from tfplace.learned import policies
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.placer import PolicyPlacer
from tfplace.learned.placeto import features
from tfplace.learned.placeto.features import (
  Look,
  Observer,
  fast_devices,
  random_choices,
)
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker


@dataclasses.dataclass(frozen=True, eq=False)
class PlacetoPlacer(PolicyPlacer):
  """Zero-shot placement that re-places groups one at a time.

  Attributes:
    samples: Parallel rollouts after the first.
    max_decisions: Number of coarse groups, or that used in training if smaller.
  """

  samples: int = 8
  max_decisions: int = 256
  name: ClassVar[str] = "placeto"

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    problem = tracker.problem
    every = [
      _Rollouts(policy, decisions, tracker)
      for decisions in decisions_at(
        problem, policy.decisions(self.max_decisions)
      )
    ]
    for number, rollouts in enumerate(every):
      if number and not rollouts.room:
        break
      last = rollouts.run(rollouts.fastest()[None], None)
      if tracker.best is None:
        devices = rollouts.decisions.to_devices(last[0])
        offer_like(tracker, GroupGraph(problem), devices)
    for rollouts in itertools.cycle(every):
      if not rollouts.room or not problem.num_groups:
        break
      number = min(self.samples, rollouts.room)
      rollouts.run(rollouts.starts(number, rng), rng)


class _Rollouts:
  def __init__(
    self, policy: policies.Policy, decisions: Decisions, tracker: Tracker
  ) -> None:
    self.decisions = decisions
    self._policy = policy
    self._tracker = tracker
    self._observer = Observer(decisions, tracker.evaluator)
    self._features = features.extract(decisions)
    self._fast = fast_devices(decisions)

  @property
  def room(self) -> int:
    """Number of placements that the budget still allows in one batch.

    One evaluation is reserved, because the best placement is evaluated again.
    """
    if self._tracker.is_done:
      return 0
    left = self._tracker.left.max_evaluations
    return sys.maxsize if left is None else max(0, left - 1)

  def fastest(self) -> np.ndarray:
    """Returns [N] the first fastest device of each group."""
    return self._fast.argmax(axis=1).astype(np.int32)

  def starts(self, number: int, rng: np.random.Generator) -> np.ndarray:
    """Returns [number, N] starts, alternately the best so far and random."""
    choices = random_choices(self._fast, number, rng)
    if self._tracker.best is not None:
      choices[::2] = self.decisions.to_choices(self._tracker.best[0])
    return choices

  def run(
    self, choices: np.ndarray, rng: np.random.Generator | None
  ) -> np.ndarray:
    """Runs episodes from [B, N] allowed devices, within the budget.

    `rng` samples devices; None takes the most probable ones. Returns the final
    [B, N] devices.
    """
    choices = choices.copy()
    count = self._features.num_decisions
    look = self._look(choices)
    for step in range(count):
      if self.room < len(choices):
        break
      now = np.full(len(choices), step, np.int32)
      logits = self._policy.run(
        "logits", [*self._features.tensors().values(), choices, look.start, now]
      )
      if rng is not None:
        logits = logits + rng.gumbel(size=logits.shape)
      choices[:, step] = logits.argmax(axis=1)
      look = self._look(choices)
    return choices

  def _look(self, choices: np.ndarray) -> Look:
    look, tracker = self._observer.look(choices), self._tracker
    tracker.evaluations += len(choices)
    first = int(look.feasible_us.argmin())
    best = tracker.best
    if look.feasible_us[first] < (
      np.inf if best is None else best[1].step_time_us
    ):
      tracker.offer(self.decisions.to_devices(choices[first]))
    return look
