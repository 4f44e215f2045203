"""When a model is planned, for what, and what is told of it."""

import dataclasses
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tests.testing.clusters import linked
from tfplace.bounds import lower_bound
from tfplace.errors import ApplyError, ExtractionError, TfplaceError
from tfplace.graph.quantities import format_us
from tfplace.plan import local_devices, local_step

CPUS = tuple(f"{at.LOCAL}CPU:{i}" for i in range(3))
FAST = at.linked()
SLOW = at.linked(bandwidth=1e-3, latency_us=1e6)  # a transfer takes a second


def test_a_batch_size_lets_it_plan_at_once():
  model = at.build("two_inputs")
  tfplace.place_model(model, FAST, strategy="m_etf", batch_size=at.BATCH)
  told = model.placement
  assert told.strategy == "m_etf" and told.training and not told.one_device
  assert len(told.devices) > 1
  assert "Estimated op times, searched by m_etf." in told.notes
  # No placement of the problem is faster than its proven bound.
  bound_us = lower_bound(told.placement.problem).us
  assert told.evaluation.lower_bound_us == bound_us
  assert f"per training step of {at.BATCH} examples on" in told.message
  assert told.evaluation.step_time_us < told.single_device.step_time_us
  assert set(told.assignments) == set(told.placement.problem.graph.names)


@pytest.mark.parametrize("use", ["train_on_batch", "evaluate"])
def test_without_shapes_a_training_step_is_planned_at_first_use(use):
  model = tfplace.place_model(at.build("subclassed"), FAST, strategy="m_etf")
  assert model.placement is None
  getattr(model, use)(*at.batch("subclassed"))
  assert model.placement.training and not model.placement.one_device
  # Planned for the batch in use: [8, 3] floats out of the last layer.
  graph = model.placement.placement.problem.graph
  output = graph.index["net_1/last_1/BiasAdd"]
  start = graph.output_offsets[output]
  examples = at.BATCH if use == "train_on_batch" else 32  # Keras' default
  assert graph.output_bytes[start] == examples * 3 * 4


@pytest.mark.parametrize(("examples", "size"), [(14, 6), (12, 6), (6, 64)])
def test_fit_says_the_batch_size_where_the_last_batch_is_smaller(
  examples, size
):
  model = at.build("two_inputs")
  tfplace.place_model(model, FAST, strategy="m_etf", microbatches=[4, 2])
  x, y = at.batch("two_inputs")
  x, y = keras.tree.map_structure(
    lambda a: np.resize(a, (examples, *a.shape[1:])), (x, y)
  )
  model.fit(x, y, batch_size=size, verbose=0)
  assert model.placement.batch_size == 6
  assert "per training step of 6 examples" in model.placement.message


def test_prediction_before_compile_plans_again_for_training():
  model = tfplace.place_model(
    at.build("dense", compiled=False), FAST, strategy="m_etf"
  )
  x, y = at.batch("dense")
  before = model.predict(x, verbose=0)
  assert not model.placement.training
  assert "per inference step of" in model.placement.message
  model.compile(at.sgd(), "mse")
  model.fit(x, y, verbose=0)
  assert model.placement.training
  assert "per training step of" in model.placement.message
  assert not np.allclose(model.predict(x, verbose=0), before)


def test_a_plan_outlives_another_loss_and_frozen_layers():
  model = at.build("dense")
  tfplace.place_model(model, FAST, strategy="m_etf", batch_size=at.BATCH)
  assert len(model.placement.devices) > 1
  at.losses(model, "dense", 1)
  plan, before = model.placement, model.get_layer("first").get_weights()[0]
  model.get_layer("first").trainable = False
  model.compile(keras.optimizers.RMSprop(0.01), "mae", jit_compile=False)
  assert np.isfinite(model.train_on_batch(*at.batch("dense"))).all()
  assert model.placement is plan
  kept = model.get_layer("first").get_weights()[0]
  np.testing.assert_array_equal(kept, before)
  # The same of a plan that was given.
  model = tfplace.place_model(at.build("dense"), placement=plan)
  model.compile(keras.optimizers.SGD(0.1), "mae", jit_compile=False)
  assert np.isfinite(model.train_on_batch(*at.batch("dense"))).all()


def test_where_nothing_beats_one_device_the_model_is_left_on_it(caplog):
  model = at.build("dense")
  with caplog.at_level(logging.WARNING, "tfplace"):
    tfplace.place_model(model, SLOW, batch_size=at.BATCH, budget_s=1)
  plan = model.placement
  assert plan.one_device and plan.devices == CPUS[:1]
  assert "on CPU:0: no placement found is faster" in plan.message
  assert plan.message in caplog.text
  other = tfplace.place_model(at.build("dense"), placement=plan)
  assert other.placement is plan
  for each in (model, other):
    assert each.supports_jit
    with at.recorded() as ran:
      at.losses(each, "dense", 1)
    assert {node.device for node in ran} == {"CPU:0"}


def test_a_named_strategy_is_applied_whatever_it_costs(caplog):
  with caplog.at_level(logging.WARNING, "tfplace"):
    plan = tfplace.plan_model(
      at.build("dense"), SLOW, strategy="blocks", budget_s=1
    )
  ratio = plan.evaluation.step_time_us / plan.single_device.step_time_us
  assert ratio > 100  # a transfer takes a second, a step on one device less
  assert plan.strategy == "blocks" and not plan.one_device
  assert f"{ratio:,.0f} times as long as on one device" in plan.message
  assert plan.message in caplog.text
  model = tfplace.place_model(at.build("dense"), placement=plan)
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  used = {at.LOCAL + node.device for node in ran}
  assert set(model.placement.devices) == set(plan.devices) == used > {CPUS[0]}


def test_a_cluster_of_one_device_is_obeyed():
  models = []
  for name in (CPUS[0], CPUS[2]):
    cluster = tfplace.Cluster("one", (tfplace.Device(name, "CPU"),))
    models.append(
      tfplace.place_model(
        at.build("dense"), cluster, strategy="single", batch_size=at.BATCH
      )
    )
  assert "the only device" in models[0].placement.message
  plan = models[1].placement
  assert plan.one_device and plan.devices == CPUS[2:]
  with at.recorded() as ran:
    at.losses(models[1], "dense", 1)
  assert at.devices_of(ran, "first") == {"CPU:2"}


def test_a_what_if_plan_needs_no_devices_and_takes_any_cluster(tmp_path):
  path = tmp_path / "c.json"
  tfplace.save_cluster(tfplace.cluster_preset("v100x2"), path)
  ends = [tfplace.Device(name, "GPU", 2.0**30) for name in ("east", "west")]
  named = linked(ends)
  model = at.build("two_inputs")
  plans = [
    tfplace.plan_model(model, cluster, strategy="m_etf", batch_size=8)
    for cluster in ("v100x2", path, named)
  ]
  assert plans[1].assignments == plans[0].assignments
  assert plans[0].devices[-2:] == tuple(f"{at.LOCAL}GPU:{i}" for i in (0, 1))
  assert set(plans[2].devices) <= {"east", "west"}
  for given in (plans[0], plans[2], plans[0].layers):
    with pytest.raises(ApplyError, match="which this process does not have"):
      tfplace.place_model(model, placement=given)


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"cluster": "p100x4"}, "GPU:0"),
    ({"strategy": "magic"}, "m_etf"),
    ({"cluster": 3}, "a cluster is"),
    ({"verbose": "yes"}, "verbose is 'yes'; it must be 'auto', 0 or 1"),
    ({"batch_size": True}, "batch_size is True; it must be a whole number"),
    ({"order": "fifo"}, r"'fifo'.*arrival, rank, auto"),
    ({"microbatches": "all"}, "microbatches is 'all'; .* or 'auto' for place_"),
    ({"costs": "low"}, "'low'; choose one of grappler, .*, or measured or"),
    ({"check": None}, "check is None; it must be True or False"),
    ({"max_memory": "10GiB"}, "max_memory is a mapping .* not '10GiB'"),
    ({"keep_together": [[]]}, "keep_together takes names of layers"),
  ],
)
def test_a_bad_request_fails_before_the_model_is_touched(options, said):
  model = at.build("dense")
  with pytest.raises(TfplaceError, match=said):
    tfplace.place_model(model, **options)
  assert not hasattr(model, "placement")


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"max_memory": {"CPU:0": 1}}, "max_memory is for planning"),
    ({"strategy": "heft"}, "strategy is for planning"),
    ({"microbatches": "auto"}, "microbatches='auto' is for planning"),
  ],
)
def test_a_given_placement_leaves_nothing_to_plan(options, said):
  with pytest.raises(ApplyError, match=said):
    tfplace.place_model(at.build("dense"), placement=at.SPLIT, **options)


def test_a_model_without_layers_is_refused_by_name():
  for function in (tfplace.place_model, tfplace.plan_model):
    with pytest.raises(ApplyError, match="'hollow' has no layers"):
      function(keras.Sequential(name="hollow"))


@pytest.mark.parametrize("verbose", [0, 1])
def test_verbose_prints_every_stage_or_nothing(verbose, caplog, capsys):
  options = {"strategy": "single", "costs": "estimated", "verbose": verbose}
  with caplog.at_level(logging.INFO, "tfplace"):
    plan = tfplace.plan_model(at.build("dense"), FAST, **options)
  lines = capsys.readouterr().out.splitlines()
  lines = [line for line in lines if "compiling" not in line]
  stages = ("tracing", "costs", "proof", "search")
  assert set(plan.seconds) >= set(stages)
  if verbose:
    for stage, line in zip(stages, lines, strict=False):
      assert line.startswith(f"planning model 'net': {stage}")
    assert lines[-2].startswith("model 'net': Planned in ")
    assert lines[-1] == f"model 'net': {plan.message}"
  else:  # Not even a warning of what gains nothing.
    assert not lines and f"model 'net': {plan.message}" in caplog.text
    assert max(record.levelno for record in caplog.records) == logging.INFO


@pytest.mark.parametrize("costs", ["measured", "estimated"])
def test_links_of_gpus_are_measured_with_the_costs(monkeypatch, costs):
  asked = []

  def measured(cluster, on_stage):
    asked.append(cluster)
    extra = {**cluster.extra, "links": "measured"}
    return dataclasses.replace(cluster, extra=extra)

  monkeypatch.setattr(local_devices, "lacks_links", lambda _: True)
  monkeypatch.setattr(local_devices, "with_measured_links", measured)
  options = {"strategy": "m_etf", "batch_size": at.BATCH, "costs": costs}
  model = tfplace.place_model(at.build("dense"), **options)
  known = model.placement.placement.problem.cluster
  assert (known.extra["links"] == "measured") == (costs == "measured")
  assert len(asked) == (costs == "measured")


def _compiled_model():
  model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
  model.compile("sgd", "mse", jit_compile=True)
  return model


@pytest.mark.parametrize(
  ("unplaced_us", "microbatches", "stays"),
  [(1.0, 1, True), (1e9, 1, False), (1.0, 2, False)],
)
def test_a_plan_must_be_faster_than_the_step_that_fit_compiles(
  monkeypatch, unplaced_us, microbatches, stays
):
  monkeypatch.setattr(local_step, "compiled_us", lambda traced: unplaced_us)
  model = _compiled_model()
  options = {"batch_size": 8, "budget_s": 0.5, "costs": "measured"}
  options["microbatches"] = microbatches
  told = tfplace.plan_model(model, FAST, **options)
  (note,) = [note for note in told.notes if "with XLA" in note]
  assert note.startswith("The placed step takes ")
  assert format_us(unplaced_us) in note
  if stays:
    assert told.one_device and note.endswith("so the model stays unplaced.")
    assert told.devices == (CPUS[0],) and told.variant.count == 1
  else:
    assert "stays unplaced" not in note and told.variant.count == microbatches


def test_the_reference_is_compiled_only_where_fit_compiles(monkeypatch):
  timed = []
  monkeypatch.setattr(local_step, "compiled_us", timed.append)
  options = {"batch_size": at.BATCH, "budget_s": 0.2, "costs": "measured"}
  # In `place_model`, XLA is off until it is decided; the wish counts.
  for plan in (tfplace.plan_model, tfplace.place_model):
    plan(_compiled_model(), FAST, **options)
    assert timed.pop().training
  tfplace.plan_model(at.build("dense"), FAST, **options)
  assert not timed


@pytest.mark.parametrize(
  ("jit_compile", "options", "why"),
  [
    (False, {"compile": "none"}, None),
    (True, {"compile": "xla"}, None),
    (True, {"compile": "none"}, "XLA, which compiles that step, draws others"),
    (False, {"microbatches": 2}, "each microbatch draws its own"),
  ],
)
def test_plans_say_where_dropout_differs(jit_compile, options, why):
  model = at.build("dropout")
  model.jit_compile = jit_compile
  given = {"costs": "estimated", "strategy": "metis", "batch_size": 4}
  plan = tfplace.plan_model(model, at.linked(2), **given, **options)
  notes = [note for note in plan.notes if note.startswith("Dropout")]
  text = f"Dropout has other masks than in the unplaced step: {why}."
  assert notes == ([text] if why else [])


def test_a_ragged_batch_is_refused_with_a_way_out():
  inputs = keras.Input((None,), dtype="int32")
  means = keras.layers.GlobalAveragePooling1D()
  model = keras.Model(inputs, means(keras.layers.Embedding(9, 4)(inputs)))
  model.compile(loss="mse")
  batch = tf.ragged.constant([[1, 2], [3]]), np.ones((2, 4), np.float32)
  with pytest.raises(ExtractionError, match=r"is ragged.*padded_batch"):
    tfplace.plan_model(model, sample=batch, cluster="v100x2", budget_s=1)


@pytest.mark.parametrize("use", ["fit", "evaluate"])
def test_a_first_batch_that_fails_leaves_the_model_usable(use):
  model, expected = at.dense("net"), at.dense("net")
  expected.set_weights(model.get_weights())
  for each in (model, expected):
    each.compile("adam", "mse", jit_compile=False)
  tfplace.place_model(model, strategy="metis", budget_s=0.5, costs="estimated")
  x, y = at.batch("dense")
  with pytest.raises(ValueError, match="Dimensions must be equal"):
    getattr(model, use)(x, np.ones((len(x), 5)), verbose=0)
  for _ in range(2):
    losses = [each.fit(x, y, verbose=0).history for each in (model, expected)]
  np.testing.assert_allclose(losses[0]["loss"], losses[1]["loss"], rtol=1e-5)
