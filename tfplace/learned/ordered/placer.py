"""Placer `ordered`: a policy that decides in order (base install)."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.errors import PlacementError, TfplaceError
from tfplace.learned import policies
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.encoder import features
from tfplace.learned.ordered.decoding import BASE, SEEN, SLOWER, Head, decode
from tfplace.learned.ordered.tables import (
  PartialTables,
  changed,
  partial_tables,
)
from tfplace.learned.placer import PolicyPlacer
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_starts
from tfplace.placers.tracker import Tracker

Turn = tuple[float, float]  # temperature, bonus in nats for no change


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedPlacer(PolicyPlacer):
  """Improves a placement decision by decision.

  Each sample modifies the best placement so far. This is a learned
  large-neighborhood search (Wu et al., arXiv 2107.07105) in which one pass
  decides both what changes and how.

  Attributes:
    samples: Maximum number of samples per size.
    patience: Samples without improvement after which the search ends.
    start: [num_starts, num_ops] devices of starts, of which the best is
      modified first. None uses the best placement of the rules.
    sizes: Numbers of decisions of a policy that names none.
    first: (temperature, bonus in nats for keeping a decision) of the first
      samples. The bonus reduces the changes of an overconfident policy.
    turns: The same of the other samples, in turn.
    rules: Strategies whose placements are starts, for steps without
      microbatches. Microbatched steps start from `registry.MICROBATCHED`.
  """

  samples: int = 4096
  patience: int = 32
  start: np.ndarray | None = None
  sizes: tuple[int, ...] = (512,)
  first: tuple[Turn, ...] = ((0.0, 0.0), (0.0, 1.0), (0.0, 2.0))
  turns: tuple[Turn, ...] = ((0.5, 0.0), (0.5, 1.0), (0.25, 0.0), (0.5, 2.0))
  rules: tuple[str, ...] = ("expert", "axes", "single")
  name: ClassVar[str] = "ordered"

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    sizes = [n for n in policy.decisions() if n is not None] or self.sizes
    self.search(tracker, rng, policy, sizes)

  def search(
    self,
    tracker: Tracker,
    rng: np.random.Generator,
    policy: policies.Policy | None,
    sizes: Sequence[int],
  ) -> None:
    """Offers samples at the given sizes; without a policy, random changes."""
    base = self._begin(tracker)
    passes = [
      Pass(dataclasses.replace(decisions, base=base), policy)
      for decisions in decisions_at(tracker.problem, sizes)
    ]
    better = 0  # index of the sample that found the best placement
    turns = itertools.chain(self.first, itertools.cycle(self.turns))
    for number, turn in zip(range(self.samples), turns, strict=False):
      for one in passes:
        if tracker.is_done or number - better > self.patience:
          return
        if one.offer_sample(tracker, rng, *turn):
          better = number

  def _begin(self, tracker: Tracker) -> np.ndarray:
    """Offers all starts; returns [num_ops] devices of the best or first."""
    starts = self.start
    if starts is None:
      starts = np.stack(list(ruled(tracker, self.rules)))
    return offer_starts(tracker, GroupGraph(tracker.problem), starts)


def ruled(tracker: Tracker, rules: Sequence[str]) -> Iterator[np.ndarray]:
  """Yields [num_ops] devices of each rule that succeeds.

  If none does, each op goes to the first device that can run it.
  """
  problem, evaluator = tracker.problem, tracker.evaluator
  is_split = problem.graph.num_microbatches > 1
  found = 0
  for name in registry.MICROBATCHED if is_split else rules:
    placer = registry.get_placer(name)
    # A rule may need more devices, or find nothing that fits.
    with contextlib.suppress(TfplaceError):
      budget = Budget(tracker.budget.left_s)
      yield placer.place(problem, evaluator, budget, 0).placement.devices
      found += 1
  if not found:
    groups = GroupGraph(problem)
    yield groups.expand(groups.nearest(np.zeros(groups.num_groups, int)))


def policy_head(policy: policies.Policy | None, decisions: Decisions) -> Head:
  """Computes a policy's head for a problem; uniform without a policy."""
  if policy is None:
    return uniform_head(decisions.num_decisions)
  seen = features.extract(decisions, policy.axes)
  told = policy.run("contexts", seen.tensors().values())
  return Head(*told, *policy.run("head", ()))


class Pass:
  """Samples of a policy, or random changes, at one number of decisions."""

  def __init__(
    self, decisions: Decisions, policy: policies.Policy | None
  ) -> None:
    self.decisions = decisions
    self.tables: PartialTables = partial_tables(decisions)
    self.head = policy_head(policy, decisions)

  def offer_sample(
    self,
    tracker: Tracker,
    rng: np.random.Generator,
    temperature: float,
    keeping: float,
  ) -> bool:
    """Offers a sample; returns True if it becomes the base."""
    shape = self.tables.allowed.shape
    noise = rng.gumbel(size=shape) * temperature
    noise[np.arange(shape[0]), self.decisions.base_choices] += keeping
    free = np.full((1, shape[0]), -1, np.int32)
    given = noise[None].astype(np.float32)
    (choices,) = decode(self.tables, self.head, given, free, False).choices
    devices = self.decisions.to_devices(choices)
    known = len(tracker.history)
    with contextlib.suppress(PlacementError):
      tracker.offer(devices)
    if len(tracker.history) == known:
      return False
    self.decisions = dataclasses.replace(self.decisions, base=devices)
    self.tables = changed(self.tables, self.decisions)
    return True


def uniform_head(
  num_decisions: int, keeping: float = 1.5, avoids_slow: float = 100.0
) -> Head:
  """Returns a head of random changes that avoids slow devices.

  Args:
    num_decisions: N.
    keeping: Bonus in nats for keeping a decision.
    avoids_slow: Penalty in nats for a device that is e times slower.
  """
  shapes = ((num_decisions, 1), (num_decisions, SEEN), (SEEN, 1), (1, 1))
  weights = [np.zeros(shape, np.float32) for shape in (*shapes, (1,), (1,))]
  weights[1][:, SLOWER] = -avoids_slow
  weights[1][:, BASE] = keeping
  return Head(*weights)
