"""Step variants that compete for the budget of a search (the arms of a bandit).

With workers, arms are searched side by side: an arm is begun, and its result is
taken over when it is settled. Without, it is searched when it is begun.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from concurrent import futures

from tfplace.core.evaluation import Result
from tfplace.core.microbatches import MicrobatchConfig
from tfplace.core.units import format_us
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.plan.config import PlanConfig, Stages
from tfplace.plan.search import find_placement, single_of
from tfplace.plan.variants import (
  OpenVariant,
  StepVariant,
  VariantTrial,
  in_words,
)


@dataclasses.dataclass(eq=False)
class Arm:
  """Step variant that competes for the budget.

  Attributes:
    microbatches: microbatches of the variant.
    variant: the extracted variant, or None after its last search, because it
      may hold a copy of the weights.
    best: best placement found, or None.
    single: best placement on one device, or None.
    seconds: search time in seconds.
    why: reason why there is no placement.
    failure: error if nothing fits in memory.
    error: other error of the placer, or None.
    other_order_us: step time in the order that the first search rejected.
    bound_us: proven lower bound of the step time, or 0 for measured costs. A
      variant with a bound above the best step time is not searched.
    pending: search that runs on a worker, or None.
  """

  microbatches: MicrobatchConfig
  variant: StepVariant | None = None
  best: Result | None = None
  single: Result | None = None
  seconds: float = 0.0
  why: str = ""
  failure: InfeasibleError | None = None
  error: TfplaceError | None = None
  other_order_us: float | None = None
  bound_us: float = 0.0
  pending: "futures.Future[Result] | None" = None

  @property
  def step_time_us(self) -> float:
    """Step time of the best placement, or infinity."""
    return self.trial.step_time_us

  @property
  def trial(self) -> VariantTrial:
    """Record of the trial."""
    return VariantTrial(self.microbatches, self.best, self.seconds, self.why)

  @property
  def opened(self) -> StepVariant:
    """The variant, which an arm has while it may win."""
    if self.variant is None:
      raise TfplaceError(f"the step {in_words(self.microbatches)} is not open")
    return self.variant


class Arms:
  """All arms, and the budget that their searches share.

  Args:
    open_variant: function that extracts a step variant.
    config: settings; `config.workers` search if there are any.
    show: reports and times the stages.
    least_share: least share of the budget for one search.

  Attributes:
    all: arms in order of their beginning.
    left_s: seconds of the budget that are left.
    left_evaluations: evaluations that are left, or None.
    num_workers: searches at once.
  """

  def __init__(
    self,
    open_variant: OpenVariant,
    config: PlanConfig,
    show: Stages,
    least_share: float,
  ) -> None:
    self.all: list[Arm] = []
    self.left_s = config.budget_s
    self.left_evaluations = config.max_evaluations
    self.num_workers = 1
    self._open = open_variant
    self._config = config
    self._show = show
    self._least_share = least_share
    self._threads: futures.Executor | None = None
    if config.workers is not None:
      self.num_workers = max(1, len(config.workers.addresses))
      self._threads = futures.ThreadPoolExecutor(self.num_workers)

  def close(self) -> None:
    """Forgets searches that have not begun on workers."""
    if self._threads is not None:
      self._threads.shutdown(wait=False, cancel_futures=True)

  @property
  def best_us(self) -> float:
    """Best step time of the settled arms."""
    return min(arm.step_time_us for arm in self.all)

  @property
  def is_late(self) -> bool:
    """Returns whether the rest of the budget goes to variants already tried."""
    by_time = self._config.max_evaluations is None
    return by_time and self.left_s < self._config.budget_s / 2

  def attempt(
    self,
    microbatches: MicrobatchConfig,
    share: float,
    start: Arm | None = None,
  ) -> Arm:
    """Begins an arm and settles it."""
    arm = self.begin(microbatches, share, start)
    self.settle(arm)
    return arm

  def begin(
    self,
    microbatches: MicrobatchConfig,
    share: float,
    start: Arm | None = None,
  ) -> Arm:
    """Extracts and searches a variant, or records why it is of no use.

    Args:
      share: share of the budget.
      start: arm from whose placement the search starts.
    """
    arm = Arm(microbatches)
    best_us = self.best_us
    self.all.append(arm)
    try:
      arm.variant = self._open(microbatches)
    except TfplaceError as error:
      arm.why = str(error)
      return arm
    if arm.variant.live is None:  # Measured costs may err and prove nothing.
      arm.bound_us = arm.variant.problem.lower_bound_us
    if arm.bound_us < best_us:
      self.search(arm, share, start)
    else:
      arm.variant = None
      arm.why = f"takes at least {format_us(arm.bound_us)}"
    return arm

  def search(
    self, arm: Arm, share: float, like: Arm | None = None, number: int = 1
  ) -> None:
    """Searches for a share of the budget from the arm's best placement.

    An arm without one may start `like` another arm.

    Args:
      number: searches at once, with workers.
    """
    config, variant = self._config, arm.opened
    seconds = max(share, self._least_share) * config.budget_s
    known = arm.best or (like.best if like and config.searches else None)
    most = self._spend_evaluations(share)

    def find() -> Result:
      return find_placement(
        variant.problem,
        config,
        seconds,
        start=None if known is None else known.placement,
        order=arm.trial.order or config.order,
        max_evaluations=most,
        number=number,
      )

    if self._threads is not None:
      arm.pending = self._threads.submit(find)
      return
    arm.pending = futures.Future()
    with self._searching(arm, f", for up to {seconds:.1f} s", seconds):
      try:
        arm.pending.set_result(find())
      except TfplaceError as error:
        arm.pending.set_exception(error)
    self.settle(arm)

  def search_all(self, arms: Sequence[Arm], share: float) -> None:
    """Searches several arms for a share of the budget each."""
    number = max(1, self.num_workers // len(arms))
    for arm in arms:
      self.search(arm, share, number=number)
    for arm in arms:
      self.settle(arm)

  def settle(self, arm: Arm) -> None:
    """Takes over the result of the last search of an arm."""
    if arm.pending is None:
      return
    is_first = arm.best is None
    if not arm.pending.done():
      with self._searching(arm, " on a worker", None):
        futures.wait([arm.pending])
    pending, arm.pending = arm.pending, None
    try:
      arm.best = pending.result()
    except InfeasibleError as error:
      arm.why, arm.failure = "does not fit in memory", error
    except TfplaceError as error:  # Some strategies reject large graphs.
      arm.variant, arm.why, arm.error = None, str(error), error
    if arm.best is not None and is_first:
      arm.other_order_us = arm.best.other_order_us
      arm.single = single_of(arm.best.tried)
    if self._threads is not None and arm.best is not None:
      arm.seconds += arm.best.seconds

  @contextlib.contextmanager
  def _searching(
    self, arm: Arm, how: str, seconds: float | None
  ) -> Iterator[None]:
    """Shows a search, or the wait for it, and charges it to the budget."""
    what = f" of the step {in_words(arm.microbatches)}{how}"
    with self._show("search", what, seconds):
      began = time.perf_counter()
      try:
        yield
      finally:
        took_s = time.perf_counter() - began
        self.left_s -= took_s
        if self._threads is None:
          arm.seconds += took_s

  def _spend_evaluations(self, share: float) -> int | None:
    most = self._config.max_evaluations
    if most is None or self.left_evaluations is None:
      return None
    spent = max(1, int(share * most))
    self.left_evaluations -= spent
    return spent
