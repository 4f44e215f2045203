"""A policy that decides in order as a placer; needs the base install."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tfplace.core.problem import Problem
from tfplace.core.protocols import Budget, Evaluator, Result
from tfplace.errors import PlacementError, TfplaceError
from tfplace.learned import exported
from tfplace.learned.decisions import Decisions, decisions_at
from tfplace.learned.gdp import features
from tfplace.learned.gdp.decoding import BASE, SEEN, SLOWER, Head, decode
from tfplace.learned.gdp.partial import PartialTables, changed, partial_tables
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_starts
from tfplace.placers.tracker import Tracker

SIZES = (512,)  # decisions of a pass, where the policy does not say
# Temperature of a draw, and nats for leaving a decision as it is, which make a
# policy that is sure of too much change less: of the first draws, and of the
# others in turn.
FIRST = ((0.0, 0.0), (0.0, 1.0), (0.0, 2.0))
TURNS = ((0.5, 0.0), (0.5, 1.0), (0.25, 0.0), (0.5, 2.0))
RULES = ("expert", "axes", "single")  # of a whole step
_KEEPS = 1.5  # nats for leaving a decision, of random changes
_NEVER_SLOW = 100.0  # nats for a device that is e times as slow


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedPlacer:
  """Changes a placement: decides clusters one after the other, each draw
  beginning from the best so far, and keeps the best.

  Learned large-neighborhood search (Wu et al., arXiv 2107.07105), but that one
  pass decides both what changes and to what.

  Attributes:
    policy: directory of an exported policy; None is the one that ships.
    samples: most draws per size.
    patience: draws without a better one after which it ends.
    start: [num_starts, num_ops] devices of placements, the best of which is
      changed first; None for the best of the rules' placements.
  """

  policy: str | None = None
  samples: int = 4096
  patience: int = 32
  start: np.ndarray | None = None
  name: ClassVar[str] = "ordered"

  def place(
    self, problem: Problem, evaluator: Evaluator, budget: Budget, seed: int
  ) -> Result:
    """The best of the placement that it begins from and of the draws, at each
    size in turn.

    Raises:
      TrainingError: no policy is there, or it cannot be loaded.
      InfeasibleError: nothing that it tried fits in memory.
    """
    policy = exported.load_placers_policy(self.name, self.policy)
    sizes = [n for n in policy.decisions() if n is not None] or SIZES
    return self.draws(problem, evaluator, budget, seed, policy, sizes)

  def draws(
    self,
    problem: Problem,
    evaluator: Evaluator,
    budget: Budget,
    seed: int,
    policy: exported.Policy | None,
    sizes: Sequence[int],
  ) -> Result:
    """As `place`, with so many decisions; without a policy, random changes."""
    tracker = Tracker(self.name, problem, evaluator, budget)
    rng = np.random.default_rng(seed)
    base = self._begin(tracker)
    passes = [
      Pass(dataclasses.replace(decisions, base=base), policy)
      for decisions in decisions_at(problem, sizes)
    ]
    better = 0  # the draw that found the best
    turns = itertools.chain(FIRST, itertools.cycle(TURNS))
    for draw, turn in zip(range(self.samples), turns, strict=False):
      for one in passes:
        if tracker.is_done or draw - better > self.patience:
          return tracker.result()
        if one.draw(tracker, rng, *turn):
          better = draw
    return tracker.result()

  def _begin(self, tracker: Tracker) -> np.ndarray:
    """Offers what draws begin from; returns the [num_ops] devices of the best,
    or of the first where nothing fits."""
    starts = self.start
    if starts is None:
      starts = np.stack(list(ruled(tracker)))
    return offer_starts(tracker, GroupGraph(tracker.problem), starts)


def ruled(tracker: Tracker) -> Iterator[np.ndarray]:
  """[num_ops] devices by each of the rules that take moments; where none finds
  a placement that fits, each op on the first device that may run it."""
  problem, evaluator = tracker.problem, tracker.evaluator
  is_split = problem.graph.num_microbatches > 1
  found = 0
  for name in registry.GRIDS if is_split else RULES:
    placer = registry.get_placer(name)
    # A rule may need more devices, or find nothing that fits.
    with contextlib.suppress(TfplaceError):
      budget = Budget(tracker.budget.left_s)
      yield placer.place(problem, evaluator, budget, 0).placement.devices
      found += 1
  if not found:
    groups = GroupGraph(problem)
    yield groups.expand(groups.nearest(np.zeros(groups.num_groups, int)))


def policy_head(policy: exported.Policy | None, decisions: Decisions) -> Head:
  """What a policy says of a problem, before anything is decided; without one,
  that all devices are as good."""
  if policy is None:
    return uniform_head(decisions.num_decisions)
  seen = features.extract(decisions, policy.axes)
  told = policy.run("contexts", seen.tensors().values())
  return Head(*told, *policy.run("head", ()))


class Pass:
  """Draws of a policy, or without one random changes, at one number of
  decisions."""

  def __init__(
    self, decisions: Decisions, policy: exported.Policy | None
  ) -> None:
    self.decisions = decisions
    self.tables: PartialTables = partial_tables(decisions)
    self.head = policy_head(policy, decisions)

  def draw(
    self,
    tracker: Tracker,
    rng: np.random.Generator,
    temperature: float,
    keeping: float,
  ) -> bool:
    """Offers a draw; see `TURNS`. Whether it is the best so far: then the next
    ones begin from it."""
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


def uniform_head(num_decisions: int) -> Head:
  """Of a policy that knows nothing but which devices are slow: all others are
  as good."""
  shapes = ((num_decisions, 1), (num_decisions, SEEN), (SEEN, 1), (1, 1))
  weights = [np.zeros(shape, np.float32) for shape in (*shapes, (1,), (1,))]
  weights[1][:, SLOWER] = -_NEVER_SLOW
  weights[1][:, BASE] = _KEEPS
  return Head(*weights)
