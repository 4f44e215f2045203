"""Keras callback that plans a placed model again while it trains."""

import dataclasses
import logging
import math
import re
from typing import Any

import keras

from tfplace.errors import ApplyError, TfplaceError
from tfplace.graph.argument_checks import check_count, whole_number
from tfplace.graph.budget import check_budget
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.graph.quantities import format_us
from tfplace.keras import progress, state
from tfplace.keras.controller import Controller, controller_of
from tfplace.keras.step_clock import StepClock
from tfplace.plan import replanning
from tfplace.plan.plan import Plan
from tfplace.plan.replanning import LiveRun

_logger = logging.getLogger("tfplace")

_STEPS = re.compile(r"([1-9]\d{0,8}) steps?")
_LEAST_STEPS = 5  # Fewest timed steps to judge a placement by.
# Timed steps, and their time in microseconds, after which a new placement is
# judged. What else a host does comes and goes, and slows short trials.
_TRIAL_STEPS, _TRIAL_US = 20, 2e6
_MOST_REST = 63  # Most reviews without a search after some in vain.


@dataclasses.dataclass(frozen=True)
class PlacementTrial:
  """Trial of a new placement in a training.

  Attributes:
    step: number of training steps when it ended.
    before_us: median step time of the previous placement.
    after_us: median step time of the new placement; infinite if its first step
      failed, NaN if the training ended before enough steps.
    kept: whether the new placement stayed.
    error: message of the error of its first step, or "".
  """

  step: int
  before_us: float
  after_us: float
  kept: bool
  error: str = ""


class PlacementCallback(keras.callbacks.Callback):
  """Plans a placed model again from the steps of its training.

  The callback times the steps of `fit`, fits the costs to them, and searches
  again from the placement in force. A placement that is predicted to be faster
  is put in force and timed for 20 steps and 2 s. It stays if its median step is
  faster by at least 3% and by more than the noise; otherwise the previous
  placement comes back. After searches or trials in vain, 1, 3, 7, ... and at
  most 63 reviews pass without one. A failure to plan or to run a placement is
  logged.

  Weights, optimizer state and random states continue, and the step variant
  (microbatches, recomputation) stays the same, so losses change by rounding
  only. Random ops without a seed generator of Keras begin anew then.

      model = tfplace.place_model(model)
      model.fit(..., callbacks=[tfplace.PlacementCallback()])

  Each epoch's logs gain `step_time_ms`, the median step time including the wait
  for input; NaN if no step was timed. Keras' `History` and `TensorBoard` record
  it; list `TensorBoard` after this callback.

  Attributes:
    trials: the ended trials, as `PlacementTrial`s.
  """

  def __init__(
    self,
    every: str | int = "epoch",
    *,
    budget_s: float = 5.0,
    seed: int = 0,
    verbose: str | int = "auto",
  ) -> None:
    """Checks the arguments.

    Args:
      every: when to plan again: after each "epoch", after a number of epochs
        such as 2, or after a number of steps such as "100 steps".
      budget_s: time limit of one search, in seconds, for which training waits.
      seed: seed of the search.
      verbose: 1 prints each change; "auto" prints on a terminal.

    Raises:
      TfplaceError: an argument is invalid.
    """
    super().__init__()
    self.trials: list[PlacementTrial] = []
    self._every, self._is_in_steps = _parsed(every)
    check_budget(budget_s)
    self._budget_s, self._seed = budget_s, check_count("seed", seed, 0)
    self._verbose = progress.check_verbose(verbose)
    self._clock = StepClock()
    self._since = 0  # Epochs or steps since the last review.
    self._plan: Plan | None = None  # The plan in force at the last look.
    self._forget()

  def _forget(self) -> None:
    """Forgets what is known of another plan."""
    self._problem: Problem | None = None  # With the costs before any refit.
    self._runs: dict[bytes, LiveRun] = {}  # Latest run of each placement.
    self._before: LiveRun | None = None  # The previous placement, in a trial.
    self._rest = self._next_rest = 0  # Reviews without a search.

  def on_train_begin(self, logs: Any = None) -> None:
    """Checks that the model is placed.

    Raises:
      ApplyError: `place_model` was not called.
    """
    if controller_of(self.model) is None:
      raise ApplyError(
        f"model {self.model.name!r} is not placed, so PlacementCallback has"
        " nothing to plan again: call tfplace.place_model(model) before fit"
      )
    self._clock.restart(is_traced=True)

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    """Plans again between epochs."""
    self._clock.start_epoch()
    if not self._is_in_steps and self._since >= self._every:
      self._review()

  def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
    """Times the step before, and judges or plans between steps."""
    self._clock.begin(batch)
    self._look()
    if self._before is not None:
      times = self._clock.step_us
      if len(times) >= _TRIAL_STEPS and sum(times) >= _TRIAL_US:
        self._judge()
    elif self._is_in_steps:
      if self._since >= self._every:
        self._review()
      self._since += self.model.steps_per_execution
    self._clock.begin(batch)  # What happened here is no part of a step.

  def on_test_begin(self, logs: Any = None) -> None:
    """Ends the last step before validation."""
    self._pause()

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    """Judges a trial of few steps, and reports the epoch."""
    self._pause()
    self._look()
    if logs is not None:
      logs["step_time_ms"] = self._clock.epoch_us / 1e3
    if self._before is not None and len(self._clock.step_us) >= _LEAST_STEPS:
      self._judge()
    if not self._is_in_steps:
      self._since += 1

  def on_train_end(self, logs: Any = None) -> None:
    """Takes a placement back that was not judged."""
    self._look()
    if self._before is not None:
      self._judge()

  def _pause(self) -> None:
    alone = self.model.steps_per_execution == 1
    self._clock.end(1 if alone else 0)

  @property
  def _controller(self) -> Controller:
    controller = controller_of(self.model)
    if controller is None:
      raise ApplyError(f"model {self.model.name!r} is no longer placed")
    return controller

  def _look(self) -> None:
    """Notices the plan in force, which the user may have replaced."""
    plan = self._controller.plan
    if plan is self._plan:
      return
    self._plan = plan
    self._forget()
    if plan is None or not plan.training:  # Not planned for `fit` yet.
      return
    try:
      replanning.check_replannable(plan)
    except ApplyError as error:
      _logger.warning("%s", error)
    else:
      self._problem = _placement(plan).problem

  def _review(self) -> None:
    """Searches a faster placement if enough steps were timed, and tries it."""
    self._look()
    if self._plan is None or self._problem is None or self._before is not None:
      return
    if len(self._clock.step_us) < _LEAST_STEPS:
      return
    self._since = 0
    run = LiveRun(_placement(self._plan), self._clock.step_us)
    self._clock.restart(is_traced=False)
    self._runs.pop(run.key, None)
    self._runs[run.key] = run  # The last one is in force.
    if self._rest > 0:
      self._rest -= 1
      return
    try:
      faster = replanning.replan(
        self._plan,
        self._problem,
        [*self._runs.values()],
        budget_s=self._budget_s,
        seed=self._seed,
      )
      if faster is None:
        self._rest_longer()
      else:
        self._start(run, faster)
    except Exception as error:  # Training goes on whatever happens here.
      self._rest_longer()
      self._clock.restart(is_traced=True)
      self._say(
        f"planning again failed, and its placement stays: {error}",
        logging.WARNING,
      )

  def _start(self, run: LiveRun, plan: Plan) -> None:
    """Puts a new plan in force and starts its trial."""

    failed = LiveRun(_placement(plan), (math.inf,))  # Until it ran.
    self._runs[failed.key] = failed

    def first_step_failed(error: Exception) -> None:
      self._plan = self._controller.plan
      self._end(run, failed, kept=False, error=str(error))
      self._say(
        "a new placement failed in its first step, so one batch is skipped and"
        f" the previous placement is back: {error}",
        logging.WARNING,
      )

    before = self._plan
    assert before is not None  # `_review`
    self._controller.trial.start(before, plan, first_step_failed)
    self._plan = self._controller.plan
    self._before = run
    self._clock.restart(is_traced=True)
    self._say(
      f"takes {format_us(run.median_us)} per step, and tries a placement that"
      " is predicted to be faster"
    )

  def _judge(self) -> None:
    """Keeps the new placement if it is faster, or takes it back."""
    before, plan = self._before, self._plan
    assert before is not None and plan is not None
    times = self._clock.step_us
    is_enough = len(times) >= _LEAST_STEPS
    run = LiveRun(_placement(plan), times if is_enough else (math.nan,))
    kept = is_enough and replanning.is_faster(run, before)
    if is_enough:
      self._runs[run.key] = run
    else:
      del self._runs[run.key]
    self._controller.trial.end(kept)
    self._plan = self._controller.plan
    self._end(before, run, kept)
    verdict = "keeps the new" if kept else "goes back to its previous"
    why = ", since training ended"
    if is_enough:
      why = f": {format_us(run.median_us)} measured per step"
      why += f" instead of {format_us(before.median_us)}"
    self._say(f"{verdict} placement{why}")

  def _end(
    self, before: LiveRun, run: LiveRun, kept: bool, error: str = ""
  ) -> None:
    """Records a trial and forgets the times of a placement taken back."""
    optimizers = state.optimizers(self.model)
    steps = int(optimizers[0].iterations.numpy()) if optimizers else 0
    self.trials.append(
      PlacementTrial(steps, before.median_us, run.median_us, kept, error)
    )
    self._before = None
    self._clock.restart(is_traced=not kept)
    if kept:
      self._next_rest = 0
    else:
      self._rest_longer()

  def _rest_longer(self) -> None:
    """Waits twice as long before the next search."""
    self._rest = self._next_rest = min(2 * self._next_rest + 1, _MOST_REST)

  def _say(self, text: str, level: int = logging.INFO) -> None:
    # Failures are logged in any case.
    is_failure = level == logging.WARNING
    verbose = self._verbose or (progress.LOGGED if is_failure else 0)
    progress.print_or_log(f"model {self.model.name!r}: {text}", verbose, level)


def _placement(plan: Plan) -> Placement:
  assert plan.placement is not None  # `check_replannable`
  return plan.placement


def _parsed(every: Any) -> tuple[int, bool]:
  """Returns a number, and whether it counts steps instead of epochs."""
  if every == "epoch":
    return 1, False
  if isinstance(every, str) and (match := _STEPS.fullmatch(every)):
    return int(match[1]), True
  count = whole_number(every)
  if count is not None and count >= 1:
    return count, False
  raise TfplaceError(
    f"every is {every!r:.60}; it must be 'epoch', a number of epochs such as 2,"
    " or a number of steps such as '100 steps'"
  )
