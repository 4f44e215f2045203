"""Placer `ordered`: a policy that decides in order (base install)."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from tfplace.errors import PlacementError, TfplaceError
from tfplace.graph.budget import Budget
from tfplace.graph.problem import Problem
from tfplace.learned import features, policies
from tfplace.learned.decisions import NEVER, Decisions, decisions_at
from tfplace.learned.ordered.base_schedule import Simulated
from tfplace.learned.ordered.decoding import Head, decode
from tfplace.learned.ordered.neighborhoods import Neighborhoods
from tfplace.learned.ordered.tables import BaseTables, PartialTables
from tfplace.learned.policies import PolicyPlacer
from tfplace.placers import registry
from tfplace.placers.groups import GroupGraph
from tfplace.placers.repair import offer_starts
from tfplace.placers.tracker import Tracker

SIZES = (512, 128, 32, 8)  # numbers of decisions of a policy that names none
# Share of the budget after which no further classical placer makes a start, and
# largest share of what is left for one that limits itself.
_STARTS_SHARE, _START_SHARE = 0.4, 0.25
# With given starts, samples end once the second half of them gained less than
# this.
_LEAST_GAIN, _LEAST_SAMPLES = 0.01, 100
_SINGLE_SHARE = 0.7  # of the later samples: one decision alone
_TRIED = 2.0  # nats by which an earlier try makes a change less likely
_FADING = 0.5  # Factor on the counts of tries with each new base.
_SIMILAR = 0.05  # Share of ops that may differ for ratings to be reused.
_BASES = 4  # Bases that are remembered.


@dataclasses.dataclass(frozen=True, eq=False)
class OrderedPlacer(PolicyPlacer):
  """Improves a placement decision by decision.

  Each sample modifies the best placement so far, in a neighborhood. This is a
  learned large-neighborhood search (Wu et al., arXiv 2107.07105); the first
  samples decide both what changes and how.

  Attributes:
    samples: Maximum number of samples per size.
    patience: Samples per size without improvement after which it ends.
    start: [num_starts, num_ops] devices of starts. The best is modified
      first. None uses those of the classical placers.
  """

  samples: int = 4096
  patience: int = 512
  start: np.ndarray | None = None
  name: ClassVar[str] = "ordered"

  def _propose(
    self,
    policy: policies.Policy,
    tracker: Tracker,
    rng: np.random.Generator,
  ) -> None:
    """Offers samples until none of the last `patience` was an improvement.

    With given starts, as in `auto`, where a search follows, they also end once
    they gain little.
    """
    passes = _passes_of(tracker.problem, policy)
    base = self._begin(tracker)
    best_us = [_time_us(tracker)]
    better = -1  # number of the sample that found the best placement
    for number in range(self.samples):
      for one in passes:
        tried = len(best_us)
        slow_us = (1.0 + _LEAST_GAIN) * best_us[-1]
        is_slow = tracker.best is not None and best_us[tried // 2] <= slow_us
        if (
          tracker.is_done
          or number - better > self.patience
          or (is_slow and self.start is not None and tried > _LEAST_SAMPLES)
        ):
          return
        with contextlib.suppress(PlacementError):
          devices = one.sample(base, rng, number)
          if tracker.offer_if_better(devices):
            base, better = devices, number
        best_us.append(_time_us(tracker))

  def _begin(self, tracker: Tracker) -> np.ndarray:
    """Offers all starts; returns [num_ops] devices of the best or first."""
    starts = self.start
    if starts is None:
      starts = np.stack(list(_ruled(tracker)))
    return offer_starts(tracker, GroupGraph.of(tracker.problem), starts)


def _time_us(tracker: Tracker) -> float:
  """Returns the best step time; a large number if nothing fits."""
  return 1e300 if tracker.best is None else tracker.best[1].step_time_us


def _ruled(tracker: Tracker) -> Iterator[np.ndarray]:
  """Yields [num_ops] devices of each classical placer that succeeds, in order.

  If none does, each op goes to the first device that can run it.
  """
  problem, evaluator = tracker.problem, tracker.evaluator
  count = 0
  for name in registry.classical(problem):
    if count and tracker.budget.spent > _STARTS_SHARE:
      break
    placer = registry.get_placer(name)
    # One may need more devices, or find nothing that fits.
    with contextlib.suppress(TfplaceError):
      budget = Budget(_START_SHARE * tracker.budget.left_s)
      yield placer.place(problem, evaluator, budget, 0).placement.devices
      count += 1
  if not count:
    groups = GroupGraph.of(problem)
    yield groups.expand(groups.nearest(np.zeros(groups.num_groups, int)))


class Pass:
  """Samples of a policy at one number of decisions.

  Args:
    simulated: See `BaseTables`.

  Attributes:
    decisions: Problem and its decisions.
    tables: Their tables.
  """

  def __init__(
    self,
    decisions: Decisions,
    policy: policies.Policy,
    simulated: Simulated | None = None,
  ) -> None:
    self.decisions = decisions
    self.tables = BaseTables(decisions, simulated)
    seen = features.extract(decisions, policy.axes).tensors().values()
    self._head = Head(*policy.run("contexts", seen), *policy.run("head", ()))
    self._neighborhoods = Neighborhoods(self.tables.plain)
    self._tries = np.zeros(decisions.allowed.shape)
    self._known: tuple[_Based, ...] = ()

  def sample(
    self, base: np.ndarray, rng: np.random.Generator, number: int
  ) -> np.ndarray:
    """Samples a change of [num_ops] devices.

    Args:
      number: Number of the sample, from 0 on. The first may change everything.
    """
    is_whole = self._neighborhoods.is_whole(number, rng)
    if not is_whole and rng.random() < _SINGLE_SHARE:
      return self._single(base, rng)
    based = self._based(base)
    if is_whole:
      move = self._neighborhoods.whole(number)
    else:
      move = self._neighborhoods.sample(self._rated(based).max(axis=1), rng)
    decisions, shape = based.decisions, based.gains.shape
    kept = decisions.base_choices
    noise = rng.gumbel(size=shape) * move.temperature
    noise[np.arange(shape[0]), kept] += move.keeping
    forced = np.where(move.free, -1, kept).astype(np.int32)[None]
    given = noise[None].astype(np.float32)
    (choices,) = decode(
      based.tables, self._head, given, forced, keeps=False
    ).choices
    return decisions.to_devices(choices)

  def _single(self, base: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Changes one decision, as rated for this base or a similar one."""
    based = self._based(base, _SIMILAR)
    rated = self._rated(based)
    devices = base.copy()
    for index in np.argsort(-rated - rng.gumbel(size=rated.shape), axis=None):
      decision, device = divmod(int(index), rated.shape[1])
      self._tries[decision, device] += 1.0
      devices[self.decisions.decision_of == decision] = device
      if (devices != base).any():  # A similar base may be there already.
        break
    return devices

  def _rated(self, based: "_Based") -> np.ndarray:
    """Returns [N, D] logs of the weights with which single changes are sampled.

    Weights are probabilities to gain, not gains: otherwise a few overrated
    changes would come first again and again.
    """
    return -np.logaddexp(0.0, -based.gains) - _TRIED * self._tries

  def _based(self, base: np.ndarray, similar: float = 0.0) -> "_Based":
    """Returns what is known of a base, or of one that is similar.

    Args:
      similar: Share of the ops that may be on another device.
    """
    most = similar * len(base)
    for known in self._known:
      if np.count_nonzero(known.decisions.base != base) <= most:
        return known
    decisions, tables = self.tables.based_on(base)
    based = _Based(decisions, tables, single_gains(tables, self._head))
    self._tries *= _FADING
    self._known = (based, *self._known)[:_BASES]
    return based


class _Based(NamedTuple):
  """Data of one base for all samples; `gains` as from `single_gains`."""

  decisions: Decisions
  tables: PartialTables
  gains: np.ndarray


def single_gains(tables: PartialTables, head: Head) -> np.ndarray:
  """Rates each change of one decision alone.

  Returns:
    [N, D] logits relative to keeping the decision; -1e9 if not allowed and for
    the base itself.
  """
  zero = np.zeros((1, *tables.allowed.shape), np.float32)
  logits = decode(tables, head, zero, tables.base[None], keeps=True).logits[0]
  at = np.arange(len(logits))
  gains = (logits - logits[at, tables.base][:, None]).astype(np.float64)
  gains[at, tables.base] = NEVER
  return np.maximum(gains, NEVER)


def _passes_of(problem: Problem, policy: policies.Policy) -> list[Pass]:
  """Returns a pass for each number of decisions that a policy names."""
  sizes = [n for n in policy.decisions() if n is not None] or SIZES
  passes: list[Pass] = []
  for decisions in decisions_at(problem, sizes):
    simulated = passes[0].tables.simulated if passes else None
    passes.append(Pass(decisions, policy, simulated))
  return passes
