"""Placers `placeto`, `rnn` and `hierarchical` (base install)."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np

from tfplace.learned import policies
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.policies import PolicyPlacer
from tfplace.learned.policy_format import PolicyInputs
from tfplace.learned.sequence import features, placeto_features, samplers
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker

_SAMPLES = 16  # Placements per batch.


@dataclasses.dataclass(frozen=True, eq=False)
class RnnPlacer(PolicyPlacer):
  """Zero-shot placement by a policy of the RNN-based placer."""

  name: ClassVar[str] = "rnn"
  _sampler: ClassVar[type[samplers.Sampler]] = samplers.RnnSampler
  _most: ClassVar[int | None] = 256  # Longer sequences take too long.

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    problem = tracker.problem
    # The policies cannot decode an empty sequence.
    if not problem.graph.num_ops:
      tracker.offer(np.zeros(0, np.int32))
      return
    sizes = policy.decisions(self._most)
    every = [
      (decisions, self._sampler_of(policy, decisions, tracker))
      for decisions in decisions_at(problem, sizes)
    ]
    first: np.ndarray | None = None
    for turn, (decisions, sampler) in enumerate(itertools.cycle(every)):
      if turn and tracker.is_done:
        break
      if turn < len(every):
        rows = sampler.draw(rng, 0).choices
      else:
        if tracker.best is not None:
          sampler.best = decisions.to_choices(tracker.best[0])
        left = tracker.left.max_evaluations or _SAMPLES
        rows = sampler.draw(rng, min(left, _SAMPLES)).choices[1:]
      devices = decisions.to_devices(rows)
      first = devices[0] if first is None else first
      tracker.offer_all(devices)
    if tracker.best is None and first is not None:
      offer_like(tracker, GroupGraph(problem), first)

  def _sampler_of(
    self, policy: policies.Policy, decisions: Decisions, tracker: Tracker
  ) -> samplers.Sampler:
    tensors = self._extract(policy, decisions).tensors().values()

    def run(name: str, *more: np.ndarray) -> np.ndarray:
      return policy.run(name, [*tensors, *more])

    return self._sampler(
      run, decisions, is_placing=True, is_over=lambda: tracker.is_done
    )

  def _extract(
    self, policy: policies.Policy, decisions: Decisions
  ) -> PolicyInputs:
    return features.extract(decisions, policy.types)


@dataclasses.dataclass(frozen=True, eq=False)
class HierarchicalPlacer(RnnPlacer):
  """Zero-shot placement by a hierarchical policy, a grouping per sample."""

  name: ClassVar[str] = "hierarchical"
  _sampler: ClassVar[type[samplers.Sampler]] = samplers.HierarchicalSampler
  _most: ClassVar[int | None] = None


@dataclasses.dataclass(frozen=True, eq=False)
class PlacetoPlacer(RnnPlacer):
  """Zero-shot placement by a Placeto policy, an episode per sample."""

  name: ClassVar[str] = "placeto"
  _sampler: ClassVar[type[samplers.Sampler]] = samplers.PlacetoSampler

  def _extract(
    self, policy: policies.Policy, decisions: Decisions
  ) -> PolicyInputs:
    return placeto_features.extract(decisions)
