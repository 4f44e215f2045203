"""Ways to split a step, that race for the seconds of a search.

Each way is a problem of its own, with a graph of its own. Successive halving
(Jamieson and Talwalkar, 2016) shares the seconds among them: all get a short
search, the better half a longer one that begins from its own best placement,
and the last one the rest. The number of microbatches grows while that helps, so
that most are never extracted. Where nothing fits, fewer microbatches in flight
are tried.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tfplace import placers
from tfplace.core.evaluation import Result
from tfplace.core.order import AUTO, LEAST_GAIN, RANK
from tfplace.core.problem import Problem
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.extraction.microbatches import SplitConfig
from tfplace.placers import groups, registry
from tfplace.plan.choice import SplitChoice, SplitTrial, in_words
from tfplace.plan.planner import SINGLE, PlanConfig, Stages, compile_placers

if TYPE_CHECKING:
  from tfplace.extraction.traced import TracedStep
  from tfplace.plan.measured import LiveDevices

_LEAST_SHARE = 0.01  # of the seconds, for any search
_TOO_LARGE = "does not fit in memory"


@dataclasses.dataclass(frozen=True)
class HalvingConfig:
  """Division of the budget among step variants; the values are our choice.

  Attributes:
    most: microbatches at most.
    most_per_device: microbatches for each device that runs the step, at most.
    rung_share: of the seconds, for each round before the last search.
    rounds: before the last search, at most.
    close: a way whose step takes at most this times the best one's is not
      given up before the last round.
    worse: more microbatches are not tried once as many of them as there are
      devices, or more, take this times what fewer do.
    far_worse: fewer microbatches than devices that take this times what the
      whole step does are not followed by others, but by as many as devices.
    gain: share of the step time that each doubling must gain, which costs do
      not tell.
  """

  most: int = 16
  most_per_device: int = 4
  rung_share: float = 0.2
  rounds: int = 3
  close: float = 1.1
  worse: float = 1.05
  far_worse: float = 1.3
  gain: float = 0.01


@dataclasses.dataclass(frozen=True)
class SplitStep:
  """A step that is split in one way, with the costs to search by.

  Attributes:
    problem: its graph and the cluster.
    traced: as a session runs it; None where nobody needs it.
    live: on open devices, whose costs the problem has; None without any.
  """

  problem: Problem
  traced: "TracedStep | None" = None
  live: "LiveDevices | None" = None


# Extracts a split of the step. It raises `TfplaceError` where there is none.
OpenSplit = Callable[[SplitConfig], SplitStep]


@dataclasses.dataclass(eq=False)
class Candidate:
  """A way to split that takes part; `step` goes with the last search of it.

  Where the order of ops is to be chosen, the first search of a way chooses it.
  One whose proven bound is above the best step of another is not searched; on
  devices that run there is none.
  """

  split: SplitConfig
  step: SplitStep | None = None
  best: Result | None = None
  seconds: float = 0.0
  why: str = ""
  failure: InfeasibleError | None = None
  other_order_us: float | None = None
  bound_us: float = 0.0

  @property
  def step_time_us(self) -> float:
    """Step time of the best placement; infinite without one."""
    return self.trial.step_time_us

  @property
  def trial(self) -> SplitTrial:
    """Describes the outcome in words."""
    return SplitTrial(self.split, self.best, self.seconds, self.why)


class Race:
  """The ways to split a step, and what each has come to."""

  def __init__(
    self,
    open_split: OpenSplit,
    base: SplitConfig,
    config: PlanConfig,
    show: Stages,
    halving: HalvingConfig,
  ) -> None:
    self.candidates: list[Candidate] = []
    self.single: Result | None = None
    self.refused = ""
    self.allowed: SplitTrial | None = None
    self._whole_error: TfplaceError | None = None
    self._open = open_split
    self._base = base
    self._config = config
    self._show = show
    self._halving = halving
    self._left_s = config.budget_s
    self._left_evaluations = config.max_evaluations
    self._share = halving.rung_share

  def explore(self) -> None:
    """The first round: a short search of each number of microbatches.

    Raises:
      TfplaceError: the whole step has no problem to search.
    """
    whole = Candidate(self._split(1))
    whole.step = self._open(whole.split)
    self.candidates.append(whole)
    problem = whole.step.problem
    compile_placers(problem, self._config, self._show, is_split=True)
    self.single = _on_one_device(problem, self._config.seed)
    devices = main_devices(problem)
    counts = _counts(devices, self._halving)
    self._share = self._halving.rung_share / len(counts)
    try:
      self._search(whole, self._share)
    except TfplaceError as error:  # some strategies place only split steps
      whole.step, self._whole_error = None, error
      whole.why = f"is not placed by {self._config.strategy}"
    if whole.best is None and _holds_too_much(problem):
      return
    if whole.best is not None and devices == 1:
      return
    least = 2
    for count in counts[1:]:
      if count >= least:
        rate = self._tried(count, devices)
        if rate > self._halving.worse and count >= devices:
          return
        if rate > self._halving.far_worse:
          least = devices
        if self._is_late or math.isinf(rate):
          return

  @property
  def _is_late(self) -> bool:
    """Returns whether the rest of the budget goes to variants already tried."""
    by_time = self._config.max_evaluations is None
    return by_time and self._left_s < self._config.budget_s / 2

  @property
  def _best_us(self) -> float:
    """The best step found; infinite where there is none."""
    return min(candidate.step_time_us for candidate in self.candidates)

  def _tried(self, count: int, devices: int) -> float:
    """Tries a number of microbatches.

    Returns:
      Its step over the best one so far; infinite where there is none, 0 where
      none is known yet.
    """
    before_us = self._best_us
    candidate = self._attempt(self._split(count))
    if candidate.bound_us >= before_us:
      return candidate.bound_us / before_us
    if candidate.step is None:
      if len(self.candidates) == 2:  # no number of them will do
        self.candidates.pop()
        self.refused = candidate.why
        self.allowed = self._if_allowed(devices)
      return math.inf
    found_us = candidate.step_time_us
    if candidate.best is None and self._base.max_in_flight is None:
      found_us = self._in_flight(count)
    if math.isinf(before_us):
      return 0.0
    return found_us / before_us

  def _in_flight(self, count: int) -> float:
    """Tries 1, 2, 4, ... in flight, as long as it helps; the best step."""
    best_us, flight = math.inf, 1
    while flight < count:
      candidate = self._attempt(self._split(count, flight))
      if candidate.step_time_us >= best_us or candidate.best is None:
        break
      best_us, flight = candidate.step_time_us, 2 * flight
    return best_us

  def _if_allowed(self, devices: int) -> SplitTrial | None:
    """What the step would take if batch statistics were allowed, if it could
    then be split."""
    if self._base.allow_batch_statistics:
      return None
    split = dataclasses.replace(
      self._split(max(2, devices)), allow_batch_statistics=True
    )
    found = self._attempt(split)
    self.candidates.remove(found)
    return None if found.best is None else found.trial

  def halve(self) -> Candidate:
    """The further rounds: the worse half goes, until one is left.

    Raises:
      InfeasibleError: none has a placement.
      TfplaceError: the placer refuses the whole step, and no other was placed.
    """
    alive = sorted((c for c in self.candidates if c.best), key=self._rank)
    if not alive:
      if self._whole_error and self.refused:
        raise TfplaceError(self.refused)  # why the step is not split, either
      raise self._whole_error or self._none_fits()
    searches = registry.STRATEGIES[self._config.strategy].accepts_start
    for _ in range(1, self._halving.rounds if searches else 1):
      alive = self._kept(alive)
      if len(alive) == 1:
        break
      for candidate in alive:
        self._search(candidate, self._halving.rung_share / len(alive))
      alive.sort(key=self._rank)
    return alive[0]

  def _kept(self, alive: Sequence[Candidate]) -> list[Candidate]:
    """The better half, and what is close to the best, if it may be better."""
    half = (len(alive) + 1) // 2
    best_us = alive[0].step_time_us
    kept = []
    for i, candidate in enumerate(alive):
      is_close = candidate.step_time_us <= self._halving.close * best_us
      may_win = i == 0 or candidate.bound_us < best_us
      if may_win and (i < half or is_close):
        kept.append(candidate)
      else:
        candidate.step = None  # which may hold a copy of the weights
    return kept

  def _rank(self, candidate: Candidate) -> tuple[float, int, int]:
    """Sorts by step time; more microbatches must gain something, and so must
    ops by rank."""
    count = candidate.split.microbatches
    rate = 1 + self._halving.gain * math.log2(count)
    flight = candidate.split.max_in_flight or count
    if self._config.order == AUTO and candidate.trial.order == RANK:
      rate /= 1 - LEAST_GAIN
    return candidate.step_time_us * rate, count, flight

  def step_of(self, candidate: Candidate) -> SplitStep:
    """Its step, which it has while it may win."""
    if candidate.step is None:
      raise TfplaceError(f"the step {in_words(candidate.split)} is not open")
    return candidate.step

  def final_config(self, winner: Candidate) -> PlanConfig:
    """Returns the settings of the final search from the best placement."""
    config, start = self._config, None
    if (
      winner.best is not None
      and registry.STRATEGIES[config.strategy].accepts_start
    ):
      start = winner.best.placement
    evaluations = self._left_evaluations
    return dataclasses.replace(
      config,
      budget_s=max(self._left_s, _LEAST_SHARE * config.budget_s),
      max_evaluations=None if evaluations is None else max(1, evaluations),
      init_placement=start,
      order=self._order(winner),
    )

  def _order(self, candidate: Candidate) -> str:
    """The order to search in: once one is chosen, that."""
    return candidate.trial.order or self._config.order

  def choice(self, winner: Candidate) -> SplitChoice:
    """Describes the variants tried and the choice."""
    return SplitChoice(
      [candidate.trial for candidate in self.candidates],
      winner.split,
      self.single,
      self.refused,
      self.allowed,
    )

  def _split(self, count: int, flight: int | None = None) -> SplitConfig:
    flight = flight or self._base.max_in_flight
    if flight is not None and flight >= count:
      flight = None
    return dataclasses.replace(
      self._base, microbatches=count, max_in_flight=flight
    )

  def _attempt(self, split: SplitConfig) -> Candidate:
    """Extracts and searches one more way, or notes why that is of no use."""
    candidate = Candidate(split)
    self.candidates.append(candidate)
    try:
      candidate.step = self._open(split)
      if candidate.step.live is None:  # else the costs that prove it may err
        candidate.bound_us = candidate.step.problem.lower_bound_us
      if candidate.bound_us < self._best_us:
        self._search(candidate, self._share)
      else:
        candidate.step = None
        candidate.why = f"takes at least {format_us(candidate.bound_us)}"
    except TfplaceError as error:  # a strategy may refuse a large graph
      candidate.step, candidate.why = None, str(error)
    return candidate

  def _search(self, candidate: Candidate, share: float) -> None:
    """Searches for a share of the seconds; it goes on where it had ended."""
    config, step = self._config, self.step_of(candidate)
    seconds = max(share, _LEAST_SHARE) * config.budget_s
    start = None if candidate.best is None else candidate.best.placement
    what = f" of the step {in_words(candidate.split)}"
    with self._show("search", f"{what}, for up to {seconds:.1f} s", seconds):
      began = time.perf_counter()
      try:
        candidate.best = placers.place(
          step.problem,
          config.strategy,
          seconds,
          config.seed,
          policy=config.policy,
          max_evaluations=self._evaluations(share),
          init_placement=start,
          order=self._order(candidate),
        )
        if start is None:
          candidate.other_order_us = candidate.best.other_order_us
      except InfeasibleError as error:
        candidate.why, candidate.failure = _TOO_LARGE, error
      took_s = time.perf_counter() - began
    candidate.seconds += took_s
    self._left_s -= took_s

  def _evaluations(self, share: float) -> int | None:
    """A share of the placements that may be evaluated; they are spent."""
    most = self._config.max_evaluations
    if most is None or self._left_evaluations is None:
      return None
    spent = max(1, int(share * most))
    self._left_evaluations -= spent
    return spent

  def _none_fits(self) -> InfeasibleError:
    """The error where nothing fits, in however many microbatches."""
    tried = [c.split.microbatches for c in self.candidates if c.failure]
    error = self.candidates[0].failure or InfeasibleError("nothing fits")
    if tried[-1:] == [1]:
      return error
    return InfeasibleError(
      f"{error}; nor does the step fit in up to {tried[-1]} microbatches",
      op=error.op,
      device=error.device,
      num_bytes=error.num_bytes,
      evaluation=error.evaluation,
    )


def main_devices(problem: Problem) -> int:
  """Devices of the kind that runs the step soonest."""
  return len(groups.main_devices(groups.GroupGraph(problem)))


def _counts(devices: int, halving: HalvingConfig) -> list[int]:
  """Numbers of microbatches to try, in order: powers of two, and the devices'.

  On one device they are for the memory, which takes as many as there are.
  """
  most = halving.most
  if devices > 1:
    most = min(most, halving.most_per_device * devices)
  powers = [1 << i for i in range(most.bit_length())]
  wanted = {*powers, devices, 2 * devices}
  return sorted(count for count in wanted if count <= most)


def _holds_too_much(problem: Problem) -> bool:
  """Returns whether the variables alone exceed the memory."""
  held = problem.graph.persistent_bytes.sum()
  return bool(held > sum(d.memory_bytes for d in problem.cluster.devices))


def _on_one_device(problem: Problem, seed: int) -> Result | None:
  """The step on the best single device; None where none has the memory."""
  try:
    return placers.place(problem, SINGLE, seed=seed)
  except TfplaceError:
    return None
