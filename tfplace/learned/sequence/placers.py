"""Placers `placeto`, `rnn` and `hierarchical` (base install)."""

import abc
import dataclasses
import itertools
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from tfplace.learned import policies
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.policies import PolicyPlacer
from tfplace.learned.policy_format import PolicyInputs
from tfplace.learned.sampling import decoding_noise, greedy_and_samples
from tfplace.learned.sequence import features, placeto_features
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_like
from tfplace.placers.tracker import Tracker


class Sampled(NamedTuple):
  """Placements and how they were sampled; the first is the most probable.

  Attributes:
    choices: [1 + samples, N] int32 allowed devices.
    given: What the network is trained on, arrays of [1 + samples, ...].
  """

  choices: np.ndarray
  given: dict[str, np.ndarray]


class Sampler(abc.ABC):
  """Draws placements.

  Args:
    run: Calls a function of the policy on this graph, by its name and its
      arguments besides the features.
    is_placing: Whether the samples are to place, not to learn from: decisions
      of a coarse group share noise, see `Decisions.groupings`.
    is_over: Whether to end episodes early.

  Attributes:
    best: [N] best placement so far, which callers set; None if unknown.
  """

  def __init__(
    self,
    run: Callable[..., np.ndarray],
    decisions: Decisions,
    is_placing: bool = False,
    is_over: Callable[[], bool] = lambda: False,
  ) -> None:
    self.best: np.ndarray | None = None
    self._run = run
    self._is_over = is_over
    self._decisions, self._is_placing = decisions, is_placing
    self._allowed = allowed = decisions.allowed
    time_us = np.where(allowed, decisions.time_us, np.inf)
    least = time_us.min(axis=1, keepdims=True, initial=np.inf)
    self._fast = allowed & (time_us <= least * (1 + 1e-9))

  @property
  def fastest(self) -> np.ndarray:
    """[N] int32 first fastest device of each decision."""
    return self._fast.argmax(axis=1).astype(np.int32)

  @abc.abstractmethod
  def sample(self, rng: np.random.Generator, samples: int) -> Sampled:
    """Samples the most probable placement, then samples."""


class RnnSampler(Sampler):
  """Samples the device of each decision, in sequence."""

  def sample(self, rng: np.random.Generator, samples: int) -> Sampled:
    groupings = self._decisions.groupings if self._is_placing else ()
    noise = decoding_noise(rng, samples, self._allowed.shape, groupings)
    choices = self._run("decode", noise)
    return Sampled(choices, {"choices": choices})


class HierarchicalSampler(Sampler):
  """Samples the group of each decision, then the device of each group."""

  def sample(self, rng: np.random.Generator, samples: int) -> Sampled:
    logits = self._run("group_logits")
    grouping = greedy_and_samples(logits, samples, rng)
    shape = logits.shape[1], self._allowed.shape[1]
    noise = decoding_noise(rng, samples, shape)
    devices = self._run("decode", grouping, noise)
    given = {"grouping": grouping, "choices": devices}
    return Sampled(self.follow_groups(grouping, devices), given)

  def follow_groups(
    self, grouping: np.ndarray, devices: np.ndarray
  ) -> np.ndarray:
    """Returns [B, N] int32 devices of [B, N] groups on [B, G] devices.

    A decision whose group is on a device without a kernel for it is on its
    fastest device, like in TensorFlow's soft placement.
    """
    wanted = np.take_along_axis(devices, grouping, axis=1)
    runs = self._allowed[np.arange(grouping.shape[1]), wanted]
    return np.where(runs, wanted, self.fastest).astype(np.int32)


class PlacetoSampler(Sampler):
  """Plays episodes, each of which re-places one group after another.

  All episodes of a batch begin alike: from the best placement so far, or at
  random on fastest devices. (The paper's start is arbitrary; the best one helps
  on `nmt`.) Without samples, the episode begins on the first fastest devices.
  """

  def sample(self, rng: np.random.Generator, samples: int) -> Sampled:
    start = self.random(1, rng) if samples else self.fastest[None]
    if samples and self.best is not None and rng.random() < 0.5:
      start = self.best[None].astype(np.int32)
    path = [np.repeat(start, 1 + samples, axis=0)]
    for step in range(start.shape[1]):
      if self._is_over():
        break
      now = np.full(1 + samples, step, np.int32)
      logits = self._run("logits", path[-1], now)
      noise = rng.gumbel(size=logits.shape)
      noise[0] = 0.0
      path.append(path[-1].copy())
      path[-1][:, step] = (logits + noise).argmax(axis=1)
    return Sampled(path[-1], {"placements": np.stack(path, axis=1)})

  def random(self, number: int, rng: np.random.Generator) -> np.ndarray:
    """Samples [number, N] int32 devices among each group's fastest ones."""
    noise = rng.random((number, *self._fast.shape))
    return np.where(self._fast, noise, -1.0).argmax(axis=-1).astype(np.int32)


_SAMPLES = 16  # Placements per batch.


@dataclasses.dataclass(frozen=True, eq=False)
class RnnPlacer(PolicyPlacer):
  """Zero-shot placement by a policy of the RNN-based placer."""

  name: ClassVar[str] = "rnn"
  _sampler: ClassVar[type[Sampler]] = RnnSampler
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
        rows = sampler.sample(rng, 0).choices
      else:
        if tracker.best is not None:
          sampler.best = decisions.to_choices(tracker.best[0])
        left = tracker.left.max_evaluations or _SAMPLES
        rows = sampler.sample(rng, min(left, _SAMPLES)).choices[1:]
      devices = decisions.to_devices(rows)
      first = devices[0] if first is None else first
      tracker.offer_all(devices)
    if tracker.best is None and first is not None:
      offer_like(tracker, GroupGraph.of(problem), first)

  def _sampler_of(
    self, policy: policies.Policy, decisions: Decisions, tracker: Tracker
  ) -> Sampler:
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
  _sampler: ClassVar[type[Sampler]] = HierarchicalSampler
  _most: ClassVar[int | None] = None


@dataclasses.dataclass(frozen=True, eq=False)
class PlacetoPlacer(RnnPlacer):
  """Zero-shot placement by a Placeto policy, an episode per sample."""

  name: ClassVar[str] = "placeto"
  _sampler: ClassVar[type[Sampler]] = PlacetoSampler

  def _extract(
    self, policy: policies.Policy, decisions: Decisions
  ) -> PolicyInputs:
    return placeto_features.extract(decisions)
