"""`PlacementCallback`: plans change during `fit`, and losses do not."""

import functools
import math
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import ApplyError, TfplaceError
from tfplace.graph import Placement
from tfplace.keras import callback as callback_module
from tfplace.keras import state, step_clock
from tfplace.keras.trial import Trial
from tfplace.plan import replanning
from tfplace.simulate import Simulator

CPU_0 = f"{at.LOCAL}CPU:0"
FAST = at.linked()
BATCHES = 30
ALONE_US = 1e6


class Time(keras.callbacks.Callback):
  """A clock that only steps advance, by the time of the plan in force."""

  def __init__(self, step_us):
    super().__init__()
    self.now, self.step_us, self._is_running = 0.0, step_us, False

  def perf_counter(self):
    return self.now

  def _advance(self):
    if self._is_running:
      steps = self.model.steps_per_execution
      self.now += steps * self.step_us(self.model.placement) / 1e6
    self._is_running = False

  def on_train_batch_begin(self, batch, logs=None):
    self._advance()
    self._is_running = True

  def on_test_begin(self, logs=None):
    self._advance()

  def on_epoch_end(self, epoch, logs=None):
    self._advance()


def data(kind):
  x, y = at.batch(kind)
  rng = np.random.default_rng(0)
  tiled = [
    np.concatenate([part + 0.01 * i for i in range(BATCHES)])
    for part in (x if isinstance(x, list) else [x])
  ]
  y = rng.normal(size=(BATCHES * at.BATCH, 3)).astype("float32")
  return (tiled if isinstance(x, list) else tiled[0]), y


def fit(model, kind, callbacks=(), epochs=2):
  x, y = data(kind)
  return model.fit(
    x,
    y,
    batch_size=at.BATCH,
    epochs=epochs,
    shuffle=False,
    verbose=0,
    callbacks=list(callbacks),
  ).history


@functools.cache
def unplaced(kind):
  """Losses of three epochs of an unplaced model."""
  return fit(at.build(kind), kind, epochs=3)["loss"]


def check_same(history, kind):
  losses = history["loss"]
  expected = unplaced(kind)[: len(losses)]
  np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)


def placed(kind="dense", strategy="single", microbatches=1, **options):
  model = at.build(kind, **options)
  return tfplace.place_model(
    model,
    FAST,
    strategy=strategy,
    batch_size=at.BATCH,
    budget_s=1,
    microbatches=microbatches,
    check=False,
  )


def scattered(plan, *_, **__):
  """The plan with groups of ops on random devices."""
  problem = plan.placement.problem
  rng = np.random.default_rng(1)
  devices = rng.integers(0, problem.cluster.num_devices, problem.num_groups)
  placement = Placement(problem, devices[problem.group_of])
  (evaluation,) = Simulator(problem).evaluate([placement])
  return plan.with_placement(
    placement, strategy="random", evaluation=evaluation, one_device=False
  )


@pytest.fixture
def clock(monkeypatch):
  """Time of steps: half of it where placed; replanning scatters."""
  found = Time(
    lambda plan: ALONE_US if plan is None or plan.one_device else ALONE_US / 2
  )
  monkeypatch.setattr(step_clock, "time", found)
  monkeypatch.setattr(replanning, "replan", scattered)
  return found


def is_back(model, before):
  """Returns whether the model is on one device by the plan `before`."""
  devices = {v.value.device for v in state.variables(model)}
  return model.placement is before and devices == {CPU_0}


def test_a_faster_placement_is_searched_and_kept(clock, monkeypatch):
  monkeypatch.undo()
  monkeypatch.setattr(step_clock, "time", clock)
  model = placed("two_inputs")
  assert model.placement.one_device
  placing = tfplace.PlacementCallback(budget_s=1)
  history = fit(model, "two_inputs", [clock, placing], 3)
  check_same(history, "two_inputs")
  (trial, *_) = placing.trials
  assert trial.kept and trial.error == ""
  # The epoch before, and 20 steps after the traced one and one more.
  assert trial.before_us == pytest.approx(ALONE_US)
  assert trial.after_us == pytest.approx(ALONE_US / 2)
  assert trial.step == BATCHES + 22
  assert len(model.placement.devices) > 1
  assert any("Planned again" in note for note in model.placement.notes)
  assert history["step_time_ms"] == pytest.approx([1000, 500, 500])


def test_a_slower_placement_is_rolled_back(clock):
  within_us = ALONE_US * 0.99
  clock.step_us = lambda plan: ALONE_US if plan.one_device else within_us
  model = placed()
  before = model.placement
  placing = tfplace.PlacementCallback()
  with at.recorded() as ran:
    check_same(fit(model, "dense", [clock, placing]), "dense")
  assert {node.device for node in ran} == {"CPU:0", "CPU:1", "CPU:2"}
  (trial,) = placing.trials
  assert not trial.kept and trial.after_us == pytest.approx(within_us)
  assert is_back(model, before)


def test_a_change_within_an_epoch_keeps_losses_and_the_split(
  clock, monkeypatch
):
  monkeypatch.setattr(callback_module, "_TRIAL_STEPS", 6)
  model = placed(microbatches=2, steps_per_execution=3)
  placing = tfplace.PlacementCallback(every="12 steps")
  check_same(fit(model, "dense", [clock, placing]), "dense")
  assert placing.trials[0].kept
  assert model.placement.variant.count == 2
  assert len(model.placement.devices) > 1


def test_a_first_step_that_fails_is_taken_back(clock, monkeypatch, caplog):
  guard = Trial._guard_first_step

  def guard_failing_step(self, *args):
    function = self._model.train_function

    def failing(iterator):
      function(iterator)  # Weights, slots and seeds have changed.
      raise tf.errors.ResourceExhaustedError(None, None, "memory is short")

    self._model.train_function = failing
    guard(self, *args)

  monkeypatch.setattr(Trial, "_guard_first_step", guard_failing_step)
  model = placed("dropout")
  before = model.placement
  placing = tfplace.PlacementCallback()
  fit(model, "dropout", [clock, placing])
  assert model.placement is before
  assert "failed in its first step, so one batch is skipped" in caplog.text
  (trial,) = placing.trials
  assert math.isinf(trial.after_us) and "memory is short" in trial.error
  # The same as training without the batch that was lost.
  other = at.build("dropout")
  fit(other, "dropout", epochs=1)
  x, y = data("dropout")
  for i in range(1, BATCHES):
    one = slice(i * at.BATCH, (i + 1) * at.BATCH)
    other.train_on_batch(x[one], y[one])
  kept = [*model.variables, *model.optimizer.variables]
  expected = [*other.variables, *other.optimizer.variables]
  assert any("seed" in variable.path for variable in kept)
  for got, same in zip(kept, expected, strict=True):
    np.testing.assert_allclose(
      got.numpy(), same.numpy(), rtol=0, atol=1e-5, err_msg=got.path
    )


def test_variables_that_cannot_move_stay_where_they_were(
  clock, monkeypatch, caplog
):
  moved, move = [], state.move

  def failing(variable, device):
    moved.append(device)
    if len(moved) == 3:
      raise RuntimeError(f"no memory on {device}")
    move(variable, device)

  model = placed()
  before = model.placement
  monkeypatch.setattr(state, "move", failing)
  placing = tfplace.PlacementCallback()
  check_same(fit(model, "dense", [clock, placing]), "dense")
  assert "its placement stays: no memory on /job" in caplog.text
  assert len(moved) > 3 and not placing.trials and is_back(model, before)


def test_a_training_that_ends_in_a_trial_takes_it_back(clock):
  model = placed()
  before = model.placement
  placing = tfplace.PlacementCallback(every="27 steps")
  fit(model, "dense", [clock, placing], epochs=1)
  (trial,) = placing.trials
  assert not trial.kept and math.isnan(trial.after_us)
  assert model.placement is before


class Interrupting(keras.callbacks.Callback):
  """Interrupts `fit` three steps after a plan was replaced."""

  steps = 3

  def on_train_begin(self, logs=None):
    self.before = self.model.placement

  def on_train_batch_end(self, batch, logs=None):
    self.steps -= self.model.placement is not self.before
    if not self.steps:
      raise KeyboardInterrupt


def test_an_interrupted_trial_is_taken_back(clock):
  model = placed()
  before, placing = model.placement, tfplace.PlacementCallback()
  with pytest.raises(KeyboardInterrupt):
    fit(model, "dense", [clock, placing, Interrupting()], epochs=6)
  assert is_back(model, before)
  # The callback and the model go on.
  fit(model, "dense", [clock, placing], epochs=1)
  assert model.placement is before


def test_an_unplaced_model_is_named():
  with pytest.raises(ApplyError, match=r"'net' is not placed.*place_model\("):
    fit(at.build("dense"), "dense", [tfplace.PlacementCallback()])


def test_a_placement_without_costs_is_only_timed(caplog):
  model = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  history = fit(model, "dense", [tfplace.PlacementCallback()])
  assert "was given by names, without costs: give place_model" in caplog.text
  assert all(0 < ms < 1e5 for ms in history["step_time_ms"])


def test_costs_are_refitted_to_the_steps_that_ran():
  plan = tfplace.plan_model(
    at.build("two_inputs"), FAST, strategy="single", batch_size=at.BATCH
  )
  problem = plan.placement.problem
  times = [3 * plan.evaluation.step_time_us] * 9
  run = replanning.LiveRun(plan.placement, times)
  options = {"budget_s": 1, "seed": 0}
  found = replanning.replan(plan, problem, [run], **options)
  # All op times are 3 times as long, and the rest is as it was.
  fitted_us = found.placement.problem.time_us
  np.testing.assert_allclose(fitted_us, 3 * problem.time_us, rtol=1e-6)
  assert found.evaluation.step_time_us < times[0]
  assert found.variant == plan.variant
  # The search does not propose a placement that ran already.
  again = replanning.LiveRun(found.placement, [2 * times[0]] * 9)
  other = replanning.replan(plan, problem, [again, run], **options)
  assert other is None or (
    other.placement.devices.tobytes() not in (again.key, run.key)
  )


@pytest.mark.parametrize(
  ("steps", "is_faster"),
  [
    ([90.0] * 9, True),
    ([98.0] * 9, False),  # less than the least gain
    ([60, 70, 80, 85, 90, 95, 100, 110, 120], False),  # noise
  ],
)
def test_faster_means_by_more_than_gain_and_noise(steps, is_faster):
  placement = types.SimpleNamespace(devices=np.zeros(1))
  old = replanning.LiveRun(placement, [100.0] * 9)
  new = replanning.LiveRun(placement, steps)
  assert replanning.is_faster(new, old) == is_faster


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"every": "0 steps"}, "every is '0 steps'; it must be 'epoch', a number"),
    ({"verbose": "yes"}, "verbose is 'yes'"),
  ],
)
def test_bad_arguments_of_the_callback_are_named(options, said):
  with pytest.raises(TfplaceError, match=said):
    tfplace.PlacementCallback(**options)


def test_searches_in_vain_become_rare(clock, monkeypatch):
  calls = []

  def nothing(plan, problem, runs, **_):
    calls.append(clock.now)

  clock.step_us = lambda plan: ALONE_US
  monkeypatch.setattr(replanning, "replan", nothing)
  fit(placed(), "dense", [clock, tfplace.PlacementCallback()], epochs=8)
  # An epoch of 30 steps takes 30 s; then one review passes, then three.
  assert calls == pytest.approx([30, 90, 210])
