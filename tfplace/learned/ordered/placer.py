"""Placer `ordered`: a policy that decides in order (base install)."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.budget import Budget
from tfplace.core.evaluation import Result
from tfplace.core.problem import Problem
from tfplace.core.protocols import Evaluator
from tfplace.errors import PlacementError, TfplaceError
from tfplace.learned import policies
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.encoder import features
from tfplace.learned.ordered.decoding import (
  BASE,
  FEATURES,
  SLOWER,
  Head,
  decode,
)
from tfplace.learned.ordered.neighborhoods import Neighborhoods
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

SIZES = (512,)  # numbers of decisions of a policy that names none


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedPlacer(PolicyPlacer):
  """Improves a placement decision by decision.

  Each sample modifies the best placement so far, in a neighborhood. This is a
  learned large-neighborhood search (Wu et al., arXiv 2107.07105); the first
  samples decide both what changes and how.

  Attributes:
    samples: Maximum number of samples per size.
    patience: Samples without improvement after which the search ends.
    start: [num_starts, num_ops] devices of starts, of which the best is
      modified first. None uses the best placement of the rules.
    proposer: Samples of the problem, if they are ready; else those of `policy`.
    sizes: Numbers of decisions of a policy that names none.
    rules: Strategies whose placements are starts, for steps without
      microbatches. Microbatched steps start from `registry.MICROBATCHED`.
  """

  samples: int = 4096
  patience: int = 512
  start: np.ndarray | None = None
  proposer: "OrderedProposer | None" = None
  sizes: tuple[int, ...] = SIZES
  rules: tuple[str, ...] = ("expert", "axes", "single")
  name: ClassVar[str] = "ordered"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """See `PolicyPlacer`."""
    if self.proposer is None:
      return super().place(problem, evaluator, budget, seed)
    tracker = Tracker(self.name, problem, evaluator, budget)
    self.search(tracker, np.random.default_rng(seed), self.proposer)
    return tracker.result()

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    sizes = sizes_of(policy, self.sizes)
    proposer = OrderedProposer(tracker.problem, policy, sizes)
    self.search(tracker, rng, proposer)

  def search(
    self,
    tracker: Tracker,
    rng: np.random.Generator,
    proposer: "OrderedProposer",
  ) -> None:
    """Offers samples until one after the other is no improvement."""
    base = self._begin(tracker)
    better = 0  # index of the sample that found the best placement
    for number in range(self.samples):
      for one in proposer.passes:
        if tracker.is_done or number - better > self.patience:
          return
        known = len(tracker.history)
        with contextlib.suppress(PlacementError):
          tracker.offer(one.sample(base, rng, number))
        if tracker.best is not None and len(tracker.history) > known:
          base, better = tracker.best[0], number

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
  contexts = policy.run("contexts", seen.tensors().values())
  return Head(*contexts, *policy.run("head", ()))


class Pass:
  """Samples of a policy, or random changes, at one number of decisions.

  Attributes:
    decisions: Problem and its decisions.
  """

  def __init__(
    self, decisions: Decisions, policy: policies.Policy | None
  ) -> None:
    self.decisions = decisions
    self._tables: PartialTables = partial_tables(decisions)
    self._head = policy_head(policy, decisions)
    self._neighborhoods = Neighborhoods(self._tables)
    self._known: tuple[np.ndarray, Decisions, PartialTables] | None = None

  def sample(
    self, base: np.ndarray, rng: np.random.Generator, number: int
  ) -> np.ndarray:
    """Samples a change of [num_ops] devices; safe in several threads.

    Args:
      number: Number of the sample, see `Neighborhoods.draw`.
    """
    decisions, tables = self._based(base)
    shape, kept = tables.allowed.shape, decisions.base_choices
    move = self._neighborhoods.draw(number, rng)
    noise = rng.gumbel(size=shape) * move.temperature
    noise[np.arange(shape[0]), kept] += move.keeping
    forced = np.where(move.free, -1, kept).astype(np.int32)[None]
    given = noise[None].astype(np.float32)
    (choices,) = decode(tables, self._head, given, forced, False).choices
    return decisions.to_devices(choices)

  def _based(self, base: np.ndarray) -> tuple[Decisions, PartialTables]:
    known = self._known  # One read: another thread may replace it.
    if known is not None and np.array_equal(known[0], base):
      return known[1:]
    decisions = dataclasses.replace(self.decisions, base=base)
    tables = changed(self._tables, decisions)
    self._known = base, decisions, tables
    return decisions, tables


class OrderedProposer:
  """Large-neighborhood moves of a policy for `placers.search`.

  Args:
    policy: None for random changes.
    sizes: Numbers of decisions, used in turn.

  Attributes:
    passes: One per size.
  """

  def __init__(
    self,
    problem: Problem,
    policy: policies.Policy | None,
    sizes: Sequence[int | None] = SIZES,
  ) -> None:
    self.passes = [Pass(d, policy) for d in decisions_at(problem, sizes)]

  def propose(
    self, devices: np.ndarray, number: int, rng: np.random.Generator
  ) -> np.ndarray:
    """See `placers.search.proposals.Proposer`."""
    one = self.passes[number % len(self.passes)]
    return one.sample(devices, rng, number // len(self.passes))


def open_proposer(problem: Problem, policy: str | None) -> OrderedProposer:
  """Loads a policy and encodes a problem.

  Raises:
    TrainingError: There is no policy, or it cannot be loaded.
  """
  loaded = policies.load_placers_policy(OrderedPlacer.name, policy)
  return OrderedProposer(problem, loaded, sizes_of(loaded, SIZES))


def sizes_of(
  policy: policies.Policy, default: Sequence[int]
) -> Sequence[int | None]:
  """Returns the numbers of decisions that a policy names, or the default."""
  return [n for n in policy.decisions() if n is not None] or default


def uniform_head(
  num_decisions: int, keeping: float = 1.5, avoids_slow: float = 100.0
) -> Head:
  """Returns a head of random changes that avoids slow devices.

  Args:
    num_decisions: N.
    keeping: Bonus in nats for keeping a decision.
    avoids_slow: Penalty in nats for a device that is e times slower.
  """
  shapes = (
    (num_decisions, 1),
    (num_decisions, FEATURES),
    (FEATURES, 1),
    (1, 1),
  )
  weights = [np.zeros(shape, np.float32) for shape in (*shapes, (1,), (1,))]
  weights[1][:, SLOWER] = -avoids_slow
  weights[1][:, BASE] = keeping
  return Head(*weights)
