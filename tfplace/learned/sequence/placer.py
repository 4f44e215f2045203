"""Placers `rnn` and `hierarchical`: recurrent policies (base install)."""

import dataclasses
import itertools
from typing import ClassVar

import numpy as np

from tfplace.errors import PlacementError
from tfplace.learned import policies
from tfplace.learned.decisions import (
  Decisions,
  decisions_at,
  decoding_noise,
  greedy_and_samples,
)
from tfplace.learned.placer import PolicyPlacer
from tfplace.learned.sequence import features
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker


class _RnnSampler:
  """Samples of an RNN policy, after the most probable placement."""

  def __init__(self, policy: policies.Policy, decisions: Decisions) -> None:
    self.decisions = decisions
    self._policy = policy
    self._seen = features.extract(decisions, policy.types)
    self._tensors = list(self._seen.tensors().values())

  def __call__(self, rng: np.random.Generator, samples: int) -> np.ndarray:
    """Returns [1 + samples, N] devices."""
    shape = self._seen.num_decisions, self._seen.num_devices
    noise = decoding_noise(rng, samples, *shape, self.decisions.groupings)
    return self._policy.run("decode", [*self._tensors, noise])


class _HierarchicalSampler(_RnnSampler):
  def __init__(self, policy: policies.Policy, decisions: Decisions) -> None:
    super().__init__(policy, decisions)
    self._fallback = features.fallback_devices(decisions)
    self._logits = policy.run("group_logits", self._tensors)

  def __call__(self, rng: np.random.Generator, samples: int) -> np.ndarray:
    """Returns [1 + samples, N] devices."""
    grouping = greedy_and_samples(self._logits, samples, rng)
    groups = self._logits.shape[1]
    noise = decoding_noise(rng, samples, groups, self._seen.num_devices)
    devices = self._policy.run("decode", [*self._tensors, grouping, noise])
    return features.follow_groups(
      grouping, devices, self._seen.allowed, self._fallback
    )


@dataclasses.dataclass(frozen=True, eq=False)
class RnnPlacer(PolicyPlacer):
  """Zero-shot placement by a policy of the RNN-based placer.

  Attributes:
    samples: Placements per batch.
  """

  samples: int = 16
  name: ClassVar[str] = "rnn"
  _sampler: ClassVar[type[_RnnSampler]] = _RnnSampler
  _most: ClassVar[int | None] = 256  # Longer sequences take too long.

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    problem = tracker.problem
    every = [
      self._sampler(policy, decisions)
      for decisions in decisions_at(problem, policy.decisions(self._most))
    ]
    # The policies cannot decode an empty sequence.
    if not problem.graph.num_ops:
      tracker.offer(np.zeros(0, np.int32))
      return
    for turn, sampler in enumerate(itertools.cycle(every)):
      if turn and tracker.is_done:
        break
      left, samples = tracker.left.max_evaluations, self.samples
      if left is not None:
        samples = min(left, samples)
      rows = sampler(rng, 0) if turn < len(every) else sampler(rng, samples)[1:]
      _offer_all(tracker, sampler.decisions.to_devices(rows))
    if tracker.best is None:
      devices = every[0].decisions.to_devices(every[0](rng, 0))[0]
      offer_like(tracker, GroupGraph(problem), devices)


@dataclasses.dataclass(frozen=True, eq=False)
class HierarchicalPlacer(RnnPlacer):
  """Zero-shot placement by a hierarchical policy, a grouping per sample."""

  name: ClassVar[str] = "hierarchical"
  _sampler: ClassVar[type[_RnnSampler]] = _HierarchicalSampler
  _most: ClassVar[int | None] = None


def _offer_all(tracker: Tracker, rows: np.ndarray) -> None:
  try:
    tracker.offer_all(rows)
  # A transfer has no link; other samples may not need it.
  except PlacementError:
    for devices in rows if len(rows) > 1 else ():
      _offer_all(tracker, devices[None])
