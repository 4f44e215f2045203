"""`PlacementCallback`: plans change during `fit`, and losses do not."""

import dataclasses
import functools
import gc
import glob
import math
import types
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tests.testing.slow import slow
from tfplace.core import Placement
from tfplace.errors import ApplyError, TfplaceError
from tfplace.keras import callback as callback_module
from tfplace.keras import planning, state, step_clock, summaries
from tfplace.keras.controller import Controller, controller_of
from tfplace.plan import replanning
from tfplace.simulate import Simulator

CPUS = tuple(f"{at.LOCAL}CPU:{i}" for i in range(3))
FAST = at.linked(memory_bytes=2.0**30)
BATCHES = 30
ALONE_US = 1e6


class Time(keras.callbacks.Callback):
  """A clock that only steps advance, by the time of the plan in force."""

  def __init__(self, step_us):
    super().__init__()
    self.now, self._step_us, self._is_running = 0.0, step_us, False

  def perf_counter(self):
    return self.now

  def _advance(self):
    if self._is_running:
      steps = self.model.steps_per_execution
      self.now += steps * self._step_us(self.model.placement) / 1e6
    self._is_running = False

  def on_train_batch_begin(self, batch, logs=None):
    self._advance()
    self._is_running = True

  def on_test_begin(self, logs=None):
    self._advance()

  def on_epoch_end(self, epoch, logs=None):
    self._advance()


def data(kind, batches=BATCHES):
  x, y = at.batch(kind)
  rng = np.random.default_rng(0)
  tiled = [
    np.concatenate([part + 0.01 * i for i in range(batches)])
    for part in (x if isinstance(x, list) else [x])
  ]
  y = rng.normal(size=(batches * at.BATCH, 3)).astype("float32")
  return (tiled if isinstance(x, list) else tiled[0]), y


def fit(model, kind, callbacks=(), epochs=3, **options):
  x, y = data(kind)
  options = {"validation_data": (x, y), **options}
  return model.fit(
    *(x, y),
    batch_size=at.BATCH,
    epochs=epochs,
    shuffle=False,
    verbose=0,
    callbacks=list(callbacks),
    **options,
  ).history


def placed(kind, strategy="single", microbatches=1, **options):
  model = at.build(kind, **options)
  return tfplace.place_model(
    model,
    FAST,
    strategy=strategy,
    batch_size=at.BATCH,
    budget_s=1,
    microbatches=microbatches,
  )


def scattered(plan, *_):
  """The plan with groups of ops on random devices."""
  problem = plan.placement.problem
  rng = np.random.default_rng(1)
  devices = rng.integers(0, problem.cluster.num_devices, problem.num_groups)
  placement = Placement(problem, devices[problem.group_of])
  (evaluation,) = Simulator(problem).evaluate([placement])
  return dataclasses.replace(
    plan,
    strategy="random",
    placement=placement,
    evaluation=evaluation,
    one_device=False,
    device_map=None,
  )


def timed(monkeypatch, of_changed_us, alone_us=ALONE_US):
  """Two callbacks: time by plan, which others read, and placement."""
  clock = Time(
    lambda plan: alone_us if plan is None or plan.one_device else of_changed_us
  )
  monkeypatch.setattr(step_clock, "time", clock)
  return clock


@functools.cache
def unplaced(kind, epochs):
  """History of the model of that kind, on which nothing is placed."""
  return fit(at.build(kind), kind, epochs=epochs)


def check_same(history, kind, epochs=3):
  expected = unplaced(kind, epochs)
  for name in ("loss", "mae", "val_loss"):
    np.testing.assert_allclose(
      history[name], expected[name], rtol=0, atol=1e-4, err_msg=name
    )


def test_a_faster_placement_is_searched_and_kept(monkeypatch, tmp_path):
  clock = timed(monkeypatch, ALONE_US / 2)
  model = placed("two_inputs")
  assert model.placement.one_device
  placing = tfplace.PlacementCallback(log_dir=tmp_path, budget_s=1)
  history = fit(model, "two_inputs", [clock, placing])
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
  check_events(tmp_path, model.placement)


def curves_in(folder):
  """(step, value) of the points of each curve."""
  (file,) = glob.glob(f"{folder}/placement/events*")
  curves = {}
  for event in tf.compat.v1.train.summary_iterator(file):
    for value in event.summary.value:
      assert value.metadata.plugin_data.plugin_name in ("", "scalars")
      number = float(tf.make_ndarray(value.tensor))
      curves.setdefault(value.tag, []).append((event.step, number))
  return curves


def check_events(folder, plan):
  curves = curves_in(folder)
  times = curves["placement/step_time_ms"]
  assert [step for step, _ in times] == [30, 60, 90]
  assert [ms for _, ms in times] == pytest.approx([1000, 500, 500])
  for device, peak in plan.evaluation.peak_memory_bytes.items():
    short = device.rpartition("/device:")[2]
    tag = f"placement/{{}}/{short}/predicted"
    assert curves[tag.format("peak_bytes")][-1] == (90, pytest.approx(peak))
    share = curves[tag.format("peak_share")][-1][1]
    assert share == pytest.approx(peak / 2**30)  # the limit of FAST
  # The devices of this process are one processor, with one memory.
  assert not any("measured" in tag for tag in curves)


def test_memory_that_tensorflow_counts_is_written(monkeypatch, tmp_path):
  def info(device):
    if device == CPUS[2]:
      raise ValueError("this device does not count")
    return {"current": 2**20, "peak": 2**28}

  monkeypatch.setattr(summaries, "_has_own_memory", lambda device: True)
  monkeypatch.setattr(tf.config.experimental, "get_memory_info", info)
  writer = summaries.PlacementSummaries(tmp_path)
  writer.write(placed("dense").placement, math.nan, 7)
  found = {
    tag.removeprefix("placement/"): points
    for tag, points in curves_in(tmp_path).items()
    if "predicted" not in tag
  }
  assert found == {  # The limit of FAST is 2**30 bytes.
    f"{name}/CPU:{i}/measured": [(7, value)]
    for i in (0, 1)
    for name, value in (
      ("current_bytes", 2.0**20),
      ("peak_bytes", 2.0**28),
      ("peak_share", 0.25),
    )
  }


@pytest.mark.parametrize("kind", ["conv_norm", slow("dropout"), slow("lstm")])
def test_a_slower_placement_is_rolled_back(kind, monkeypatch):
  clock = timed(monkeypatch, ALONE_US * 0.99)  # within the margin
  monkeypatch.setattr(replanning, "replan", scattered)
  model = placed(kind)
  before = model.placement
  placing = tfplace.PlacementCallback()
  with at.recorded() as ran:
    history = fit(model, kind, [clock, placing])
  check_same(history, kind)
  assert {node.device for node in ran} == {"CPU:0", "CPU:1", "CPU:2"}
  (trial,) = placing.trials  # It waits longer after a rollback.
  assert not trial.kept and trial.after_us == pytest.approx(ALONE_US * 0.99)
  assert model.placement is before
  assert {v.value.device for v in state.variables(model)} == {CPUS[0]}


@pytest.mark.parametrize("steps_per_execution", [slow(1), 3])
def test_a_change_within_an_epoch_keeps_the_losses(
  steps_per_execution, monkeypatch
):
  clock = timed(monkeypatch, ALONE_US * 0.5)
  monkeypatch.setattr(replanning, "replan", scattered)
  model = placed("dropout", steps_per_execution=steps_per_execution)
  monkeypatch.setattr(callback_module, "_TRIAL_STEPS", 6)
  placing = tfplace.PlacementCallback(every="12 steps")
  history = fit(model, "dropout", [clock, placing])
  check_same(history, "dropout")
  assert placing.trials[0].kept
  assert not model.placement.one_device


def test_the_step_variant_stays_when_it_is_planned_again(monkeypatch):
  clock = timed(monkeypatch, ALONE_US / 2)
  model = placed("dense", microbatches=2)
  placing = tfplace.PlacementCallback(budget_s=1)
  history = fit(model, "dense", [clock, placing], epochs=2)
  check_same(history, "dense", epochs=2)
  assert placing.trials[0].kept
  assert model.placement.microbatches == 2 and len(model.placement.devices) > 1


def test_xla_is_off_in_a_trial_and_on_again_after_it(monkeypatch):
  clock = timed(monkeypatch, ALONE_US * 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  model = at.build("dense")
  model.compile(at.sgd(), "mse", metrics=["mae"], jit_compile=True)
  tfplace.place_model(
    model, FAST, strategy="single", batch_size=at.BATCH, budget_s=1
  )
  used = []
  seen = keras.callbacks.LambdaCallback(
    on_train_batch_begin=lambda batch, logs: used.append(
      (model.placement.one_device, model.jit_compile)
    )
  )
  placing = tfplace.PlacementCallback()
  history = fit(model, "dense", [clock, placing, seen], epochs=2)
  check_same(history, "dense", epochs=2)
  assert not placing.trials[0].kept
  assert set(used) == {(True, True), (False, False)}
  assert used[-1] == (True, True)


def test_a_placed_model_may_return_to_one_device(monkeypatch):
  def alone(plan, problem, runs, config):
    zeros = np.zeros(problem.graph.num_ops, np.int32)
    return dataclasses.replace(
      scattered(plan),
      placement=Placement(problem, zeros),
      one_device=True,
      device_map=None,
    )

  clock = timed(monkeypatch, ALONE_US * 2)
  monkeypatch.setattr(replanning, "replan", alone)
  model = placed("dense", "m_etf")
  controller_of(model).replace_plan(
    planning.to_apply(scattered(model.placement))
  )
  placing = tfplace.PlacementCallback()
  history = fit(model, "dense", [clock, placing])
  check_same(history, "dense")
  assert placing.trials[0].kept and model.placement.device_map is None
  assert {v.value.device for v in state.variables(model)} == {CPUS[0]}
  state.reset_functions(model)
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  assert {node.device for node in ran} == {"CPU:0"}


def test_a_search_that_fails_is_logged_and_training_goes_on(
  monkeypatch, caplog
):
  def fail(*_):
    raise RuntimeError("the search broke")

  clock = timed(monkeypatch, ALONE_US)
  monkeypatch.setattr(replanning, "replan", fail)
  model = placed("dense")
  before = model.placement
  history = fit(model, "dense", [clock, tfplace.PlacementCallback()])
  check_same(history, "dense")
  assert model.placement is before
  assert "its placement stays: the search broke" in caplog.text


def test_memory_of_variables_that_moved_is_free_at_once():
  model = placed("dense")
  fit(model, "dense", epochs=1)  # Traced functions hold the variables.
  controller = controller_of(model)
  handles = {
    v.path: weakref.ref(v.value.handle) for v in state.variables(model)
  }
  gc.collect()
  gc.disable()
  try:
    controller.replace_plan(planning.to_apply(scattered(controller.plan)))
    moved = [
      v.path for v in state.variables(model) if v.value.device != CPUS[0]
    ]
    assert moved
    assert not any(handles[path]() for path in moved)
  finally:
    gc.enable()


def test_a_first_step_that_fails_is_taken_back(monkeypatch, caplog):
  guard = Controller._guard_first_step

  def guard_failing_step(self, *args):
    function = self._model.train_function

    def failing(iterator):
      function(iterator)  # Weights, slots and seeds have changed.
      raise tf.errors.ResourceExhaustedError(None, None, "memory is short")

    self._model.train_function = failing
    guard(self, *args)

  clock = timed(monkeypatch, ALONE_US / 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  monkeypatch.setattr(Controller, "_guard_first_step", guard_failing_step)
  model = placed("dropout")
  before = model.placement
  placing = tfplace.PlacementCallback()
  fit(model, "dropout", [clock, placing], epochs=2)
  assert model.placement is before
  assert "failed in its first step, so one batch is skipped" in caplog.text
  (trial,) = placing.trials
  assert math.isinf(trial.after_us) and "memory is short" in trial.error
  # The same as training without the batch that was lost.
  other = at.build("dropout")
  fit(other, "dropout", epochs=1)
  for i in range(1, BATCHES):
    one = slice(i * at.BATCH, (i + 1) * at.BATCH)
    x, y = data("dropout")
    other.train_on_batch(x[one], y[one])
  kept = [*model.variables, *model.optimizer.variables]
  expected = [*other.variables, *other.optimizer.variables]
  assert any("seed" in variable.path for variable in kept)
  for got, same in zip(kept, expected, strict=True):
    np.testing.assert_allclose(
      got.numpy(), same.numpy(), rtol=0, atol=1e-5, err_msg=got.path
    )


def test_variables_that_cannot_move_stay_where_they_were(monkeypatch, caplog):
  moved, move = [], state.move

  def failing(variable, device):
    moved.append(device)
    if len(moved) == 3:
      raise RuntimeError(f"no memory on {device}")
    move(variable, device)

  clock = timed(monkeypatch, ALONE_US / 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  model = placed("dropout")
  before = model.placement
  monkeypatch.setattr(state, "move", failing)
  placing = tfplace.PlacementCallback()
  history = fit(model, "dropout", [clock, placing], epochs=2)
  assert len(moved) > 3 and not placing.trials
  assert "its placement stays: no memory on /job" in caplog.text
  assert model.placement is before
  assert {v.value.device for v in state.variables(model)} == {CPUS[0]}
  check_same(history, "dropout", epochs=2)


def test_a_training_that_ends_in_a_trial_takes_it_back(monkeypatch):
  clock = timed(monkeypatch, ALONE_US / 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  model = placed("dense")
  before = model.placement
  placing = tfplace.PlacementCallback(every="27 steps")
  fit(model, "dense", [clock, placing], epochs=1, validation_data=None)
  (trial,) = placing.trials
  assert not trial.kept and math.isnan(trial.after_us)
  assert model.placement is before


class Interrupting(keras.callbacks.Callback):
  """Interrupts `fit` some steps after a plan was replaced."""

  def __init__(self, error, steps):
    super().__init__()
    self.error, self.steps, self.tried = error, steps, None

  def on_train_begin(self, logs=None):
    self.before = self.model.placement

  def on_train_batch_end(self, batch, logs=None):
    if self.model.placement is not self.before:
      self.tried = self.model.placement
      self.steps -= 1
    if not self.steps:
      raise self.error


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("mine")])
def test_an_interrupted_trial_is_taken_back(monkeypatch, error, steps):
  clock = timed(monkeypatch, ALONE_US / 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  model = placed("dense")
  before = model.placement
  stop, placing = Interrupting(error, steps), tfplace.PlacementCallback()
  with pytest.raises(type(error)):
    fit(model, "dense", [clock, placing, stop])
  assert stop.tried is not None and model.placement is before
  assert {v.value.device for v in state.variables(model)} == {CPUS[0]}
  # The callback and the model go on.
  fit(model, "dense", [clock, placing], epochs=1)
  assert model.placement is before


def test_an_interrupted_first_step_is_taken_back(monkeypatch):
  guard = Controller._guard_first_step

  def guard_interrupted_step(self, *args):
    def interrupted(iterator):
      raise KeyboardInterrupt

    self._model.train_function = interrupted
    guard(self, *args)

  clock = timed(monkeypatch, ALONE_US / 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  monkeypatch.setattr(Controller, "_guard_first_step", guard_interrupted_step)
  model = placed("dense")
  before = model.placement
  with pytest.raises(KeyboardInterrupt):
    fit(model, "dense", [clock, tfplace.PlacementCallback()])
  assert model.placement is before
  assert {v.value.device for v in state.variables(model)} == {CPUS[0]}


def test_an_interrupted_start_of_a_trial_is_taken_back(monkeypatch):
  moved, move = [], state.move

  def interrupted(variable, device):
    moved.append(device)
    if len(moved) == 3:
      raise KeyboardInterrupt
    move(variable, device)

  clock = timed(monkeypatch, ALONE_US / 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  model = placed("dense")
  before = model.placement
  monkeypatch.setattr(state, "move", interrupted)
  with pytest.raises(KeyboardInterrupt):
    fit(model, "dense", [clock, tfplace.PlacementCallback()])
  assert len(moved) > 3 and model.placement is before
  assert {v.value.device for v in state.variables(model)} == {CPUS[0]}


def test_an_interruption_after_a_kept_trial_keeps_it(monkeypatch):
  clock = timed(monkeypatch, ALONE_US / 2)
  monkeypatch.setattr(replanning, "replan", scattered)
  model = placed("dense")
  stop = Interrupting(KeyboardInterrupt(), 2 * BATCHES)
  placing = tfplace.PlacementCallback()
  with pytest.raises(KeyboardInterrupt):
    fit(model, "dense", [clock, placing, stop], epochs=6)
  assert placing.trials[0].kept and model.placement is stop.tried


class Placing(keras.callbacks.Callback):
  """Places the model once, in the given hook."""

  def __init__(self, hook, model=None):
    super().__init__()
    self.other, self.is_done = model, False
    setattr(self, hook, self._place)

  def _place(self, *_, **unused):
    if not self.is_done:
      self.is_done = True
      model = self.other or self.model
      options = {"batch_size": at.BATCH, "budget_s": 1}
      tfplace.place_model(model, FAST, strategy="m_topo", **options)


@pytest.mark.parametrize("is_placed", [False, True])
@pytest.mark.parametrize("hook", ["on_train_begin", "on_train_batch_end"])
def test_place_model_in_a_callback_keeps_the_losses(hook, is_placed):
  model = placed("dense") if is_placed else at.build("dense")
  placing = Placing(hook)
  history = fit(model, "dense", [placing])
  assert placing.is_done
  assert model.placement is not None and model.placement.strategy == "m_topo"
  check_same(history, "dense")


def test_a_fit_inside_a_fit_keeps_both_losses():
  outer, inner = placed("dense"), at.build("dense")
  histories = []

  class Nested(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      if not histories:
        histories.append(fit(inner, "dense", [Placing("on_epoch_begin")]))

  histories.append(fit(outer, "dense", [Nested(), Placing("on_epoch_end")]))
  for history in histories:
    check_same(history, "dense")


def test_an_unchanged_step_is_not_searched_again(monkeypatch):
  calls = []

  def nothing(plan, problem, runs, config):
    calls.append(runs[-1].median_us)

  clock = timed(monkeypatch, ALONE_US)
  monkeypatch.setattr(replanning, "replan", nothing)
  placing = tfplace.PlacementCallback(every=2)
  fit(placed("dense"), "dense", [clock, placing], epochs=7)
  assert calls == pytest.approx([ALONE_US])


def test_a_verdict_counts_only_if_the_host_kept_its_speed(monkeypatch):
  """A host that slows down for good makes any new placement look slow."""
  for slows in (False, True):
    tried = []

    def one(plan, problem, runs, config, tried=tried):
      tried.append([run.median_us for run in runs])
      return scattered(plan)

    clock = timed(monkeypatch, 0.0)
    clock._step_us = lambda plan, clock=clock, slows=slows: (
      ALONE_US
      * (3 if slows and clock.now > 40 else 1 if plan.one_device else 2)
    )
    monkeypatch.setattr(replanning, "replan", one)
    placing = tfplace.PlacementCallback()
    fit(placed("dense"), "dense", [clock, placing], epochs=4)
    assert [trial.kept for trial in placing.trials] == [False, False]
    # The second search knows of the slower placement, unless it is in doubt.
    runs = [[ALONE_US], [3 * ALONE_US] if slows else [2 * ALONE_US, ALONE_US]]
    assert tried == [pytest.approx(each) for each in runs]


def test_no_trial_starts_while_the_step_time_changes(monkeypatch):
  calls = []

  def nothing(plan, problem, runs, config):
    calls.append((runs[-1].median_us, clock.now))

  clock = timed(monkeypatch, 0.0)
  # 30 steps of 1 s, and 3 s each from the second epoch on.
  clock._step_us = lambda plan: ALONE_US * (1 if clock.now < 29.5 else 3)
  monkeypatch.setattr(replanning, "replan", nothing)
  fit(placed("dense"), "dense", [clock, tfplace.PlacementCallback()], epochs=5)
  # After the first epoch, and once two epochs took 3 s per step.
  times = [(ALONE_US, 30), (3 * ALONE_US, 30 + 2 * 90)]
  assert calls == [pytest.approx(each) for each in times]


def test_an_unplaced_model_is_named():
  with pytest.raises(ApplyError, match=r"'net' is not placed.*place_model\("):
    fit(at.build("dense"), "dense", [tfplace.PlacementCallback()])


def test_a_placement_without_costs_is_only_timed(caplog):
  model = tfplace.place_model(at.build("dense"), placement=at.SPLIT)
  history = fit(model, "dense", [tfplace.PlacementCallback()], epochs=2)
  assert "was given by names, without costs: give place_model" in caplog.text
  assert all(0 < ms < 1e5 for ms in history["step_time_ms"])


def test_a_given_plan_is_planned_again(monkeypatch):
  clock = timed(monkeypatch, ALONE_US / 2, alone_us=ALONE_US / 2)
  plan = tfplace.plan_model(
    at.build("dense"), FAST, strategy="m_etf", batch_size=at.BATCH
  )
  seen = []

  def look(plan, problem, runs, config):
    seen.append((plan.strategy, problem.graph.num_ops, len(runs)))

  monkeypatch.setattr(replanning, "replan", look)
  model = tfplace.place_model(at.build("dense"), placement=scattered(plan))
  fit(model, "dense", [clock, tfplace.PlacementCallback()], epochs=2)
  assert seen == [("given", plan.placement.problem.graph.num_ops, 1)]


def test_costs_are_refitted_to_the_steps_that_ran():
  plan = tfplace.plan_model(
    at.build("two_inputs"), FAST, strategy="single", batch_size=at.BATCH
  )
  problem = plan.placement.problem
  times = [3 * plan.evaluation.step_time_us] * 9
  run = replanning.LiveRun(plan.placement, times)
  config = replanning.ReplanConfig(budget_s=1)
  found = replanning.replan(plan, problem, [run], config)
  # All op times are 3 times as long, and the rest is as it was.
  fitted_us = found.placement.problem.time_us
  np.testing.assert_allclose(fitted_us, 3 * problem.time_us, rtol=1e-6)
  assert found.evaluation.step_time_us < times[0]
  assert found.microbatch_config == plan.microbatch_config
  # What ran already is not proposed again.
  again = replanning.LiveRun(found.placement, [2 * times[0]] * 9)
  other = replanning.replan(plan, problem, [again, run], config)
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
  config = replanning.ReplanConfig()
  old = replanning.LiveRun(placement, [100.0] * 9)
  new = replanning.LiveRun(placement, steps)
  assert replanning.is_faster(new, old, config) == is_faster


def test_the_clock_divides_executions_and_skips_traced_ones(monkeypatch):
  now = types.SimpleNamespace(seconds=0.0)
  time = types.SimpleNamespace(perf_counter=lambda: now.seconds)
  monkeypatch.setattr(step_clock, "time", time)
  clock = step_clock.StepClock()
  for i in range(5):  # 4 steps each: 1 s, then 2 s, ...
    clock.begin(4 * i)
    now.seconds += i + 1
  clock.end(4)
  # The first two executions are skipped; 3 s, 4 s and 5 s for 4 steps.
  assert clock.step_us == pytest.approx([0.75e6, 1e6, 1.25e6])
  assert clock.epoch_us == pytest.approx(1e6)
  now.seconds += 100  # validation
  clock.start_epoch()
  assert math.isnan(clock.epoch_us)
  clock.begin(0)
  now.seconds += 8
  clock.begin(4)
  assert clock.step_us[-1] == pytest.approx(2e6)
  clock.restart(is_traced=True)
  assert not clock.step_us and math.isnan(clock.epoch_us)


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"every": "day"}, "every is 'day'; it must be 'epoch', a number"),
    ({"every": "0 steps"}, "every is '0 steps'"),
    ({"every": 0}, "every is 0"),
    ({"every": True}, "every is True"),
    ({"every": 1.5}, "every is 1.5"),
    ({"every": None}, "every is None"),
    ({"budget_s": 0}, "budget_s"),
    ({"seed": -1}, "seed is -1"),
    ({"log_dir": 3}, "log_dir is 3; it must be a directory"),
    ({"log_dir": ""}, "log_dir is ''"),
    ({"verbose": "yes"}, "verbose is 'yes'"),
  ],
)
def test_bad_arguments_of_the_callback_are_named(options, said):
  with pytest.raises(TfplaceError, match=said):
    tfplace.PlacementCallback(**options)


@pytest.mark.parametrize(
  "every", ["epoch", 3, np.int64(2), "1 step", "90 steps"]
)
def test_forms_of_every_are_accepted(every):
  assert tfplace.PlacementCallback(every).trials == []
