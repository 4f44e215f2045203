"""Trials of other plans in a running fit."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfplace.keras import state
from tfplace.plan.plan import Plan


class Trial:
  """Trial of a plan, after which the previous one may come back."""

  def __init__(
    self, model: keras.Model, put_in_force: Callable[[Plan], None]
  ) -> None:
    """Takes the function that puts a plan in force between two steps."""
    self._model = model
    self._put_in_force = put_in_force
    self._previous: Plan | None = None  # None outside of a trial.

  def start(
    self,
    previous: Plan,
    plan: Plan,
    on_failure: Callable[[Exception], None],
  ) -> None:
    """Puts another plan in force unless its first training step fails.

    Then the previous plan and the values of all variables come back, and `fit`
    skips the batch. The values wait in host memory until that step. Unless
    `end` was called, the previous plan also comes back when `fit` is
    interrupted or fails.

    Args:
      previous: plan in force.
      plan: other plan of the training step.
      on_failure: called with the error of the first step.

    Raises:
      Exception: the plan cannot be put in force; the previous one is.
    """
    values = state.values(self._model)

    def restore() -> None:
      self._previous = previous
      self.end(is_kept=False)
      state.assign(values)

    try:
      self._put_in_force(plan)
    except BaseException:
      restore()
      raise
    self._previous = previous
    self._guard_first_step(restore, on_failure)

  def end(self, is_kept: bool) -> None:
    """Keeps the plan in force, or the one before the trial, if any."""
    previous, self._previous = self._previous, None
    if previous is not None and not is_kept:
      self._put_in_force(previous)

  def guarded(self, fit: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a `fit` that takes a trial back when it fails."""

    @functools.wraps(fit)
    def guarded_fit(*args: Any, **kwargs: Any) -> Any:
      try:
        return fit(*args, **kwargs)
      except BaseException:
        self.end(is_kept=False)
        raise

    return guarded_fit

  def _guard_first_step(
    self,
    restore: Callable[[], None],
    on_failure: Callable[[Exception], None],
  ) -> None:
    """Calls `restore` if the next call of the training function fails."""
    model, function = self._model, self._model.train_function
    if function is None:  # No fit is running.
      return

    def first_step(iterator: Any) -> Any:
      try:
        logs = function(iterator)
      except (StopIteration, tf.errors.OutOfRangeError):  # The data ended.
        raise
      except Exception as error:
        restore()
        on_failure(error)
        return model.get_metrics_result()  # The batch is skipped.
      except BaseException:
        restore()
        raise
      if model.train_function is first_step:
        model.train_function = function
      return logs

    model.train_function = first_step
