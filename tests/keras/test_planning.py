import logging
import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.bounds import lower_bound
from tfplace.core.microbatches import MicrobatchConfig, microbatch_of
from tfplace.core.units import format_us
from tfplace.cost import op_graph
from tfplace.errors import ApplyError, TfplaceError
from tfplace.extraction import trace_keras
from tfplace.keras import progress, step_source
from tfplace.placers.groups import GroupGraph
from tfplace.plan import search
from tfplace.plan.local_devices import local_cluster

CPUS = tuple(f"{at.LOCAL}CPU:{i}" for i in range(3))


FAST = at.linked()
SLOW = at.linked(bandwidth=1e-3, latency_us=1e6)  # a transfer takes a second


def test_the_local_cluster_is_the_logical_devices_all_linked():
  cluster = local_cluster()
  assert tuple(device.name for device in cluster.devices) == CPUS
  assert len(cluster.links) == 6
  assert all(0 < d.memory_bytes < float("inf") for d in cluster.devices)


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
  more = 100 * told.evaluation.step_time_us / bound_us - 100
  ratio = told.single_device.step_time_us / told.evaluation.step_time_us
  assert told.message == (
    f"{format_us(told.evaluation.step_time_us)} per training step of"
    f" {at.BATCH} examples on {len(told.devices)} CPUs, {ratio:.3g}x one"
    f" device; at most {more:.2g}% more is possible"
  )
  # Its devices are parts of one processor.
  assert told.notes[-1].endswith("so placement gains no speed.")
  assert told.evaluation.step_time_us < told.single_device.step_time_us
  assert set(told.assignments) == set(told.placement.problem.graph.names)


def test_without_shapes_it_plans_at_the_first_fit():
  expected = at.unplaced("subclassed")
  model = tfplace.place_model(at.build("subclassed"), FAST, strategy="m_etf")
  assert model.placement is None
  got = at.losses(model, "subclassed")
  np.testing.assert_allclose(got, expected, atol=1e-5)
  graph = model.placement.placement.problem.graph
  assert not model.placement.one_device
  # Planned for the batch of the fit: [8, 3] floats out of the last layer.
  output = graph.index["net_1/last_1/BiasAdd"]
  start = graph.output_offsets[output]
  assert graph.output_bytes[start] == at.BATCH * 3 * 4


def test_without_a_loss_it_plans_at_the_fit_after_compile():
  model = at.build("dense", compiled=False)
  tfplace.place_model(model, FAST, strategy="m_etf", batch_size=at.BATCH)
  assert model.placement is None
  model.compile(at.sgd(), "mse")
  model.fit(*at.batch("dense"), batch_size=at.BATCH, verbose=0)
  assert model.placement.training


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


def test_evaluation_first_plans_the_training_step():
  model = tfplace.place_model(at.build("dense"), FAST, strategy="m_etf")
  model.evaluate(*at.batch("dense"), verbose=0)
  assert model.placement.training


def test_where_nothing_beats_one_device_the_model_is_left_on_it(caplog):
  model = at.build("dense")
  with caplog.at_level(logging.WARNING, "tfplace"):
    tfplace.place_model(model, SLOW, batch_size=at.BATCH, budget_s=1)
  told = model.placement
  assert told.one_device and told.devices == CPUS[:1]
  assert "on CPU:0: no placement found is faster" in told.message
  assert told.message in caplog.text
  assert model.supports_jit
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  assert {node.device for node in ran} == {"CPU:0"}


NAMED = ("blocks", "expert", "metis", "m_topo", "heft")


@pytest.mark.parametrize("strategy", NAMED)
def test_a_named_strategy_is_applied_whatever_it_costs(strategy, caplog):
  model = at.build("dense")
  with caplog.at_level(logging.WARNING, "tfplace"):
    tfplace.place_model(
      model, SLOW, strategy=strategy, batch_size=at.BATCH, budget_s=1
    )
  told = model.placement
  ratio = told.evaluation.step_time_us / told.single_device.step_time_us
  assert ratio > 100  # a transfer takes a second, a step on one device less
  assert told.strategy == strategy and not told.one_device
  assert f"{ratio:,.0f} times as long as on one device" in told.message
  assert told.message in caplog.text
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  used = {d.removeprefix(at.LOCAL) for d in told.devices}
  assert len(used) > 1 and used <= {node.device for node in ran}


def test_a_plan_by_a_named_strategy_is_applied_whatever_it_costs():
  plan = tfplace.plan_model(
    at.build("dense"), SLOW, strategy="blocks", budget_s=1
  )
  assert not plan.one_device and "times as long as " in plan.message
  model = tfplace.place_model(at.build("dense"), placement=plan)
  assert set(model.placement.devices) == set(plan.devices) > {CPUS[0]}


def test_what_cannot_be_improved_is_said_to_be_proven():
  # One op after the other: on two devices, transfers come on top.
  model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
  plan = tfplace.plan_model(model, SLOW, budget_s=60)
  assert plan.one_device
  assert plan.evaluation.ratio_to_bound == pytest.approx(1)
  assert plan.message.endswith("; none can be faster at these costs")


def test_one_device_is_nothing_to_choose_from():
  cluster = tfplace.Cluster("one", (tfplace.Device(CPUS[0], "CPU"),))
  model = tfplace.place_model(at.build("dense"), cluster, batch_size=8)
  assert model.placement.one_device
  assert "the only device" in model.placement.message
  at.losses(model, "dense", 1)


def test_a_cluster_of_another_single_device_is_obeyed():
  cluster = tfplace.Cluster("one", (tfplace.Device(CPUS[2], "CPU"),))
  model = tfplace.place_model(
    at.build("dense"), cluster, strategy="single", batch_size=at.BATCH
  )
  assert model.placement.one_device and model.placement.devices == CPUS[2:]
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  assert at.devices_of(ran, "first") == {"CPU:2"}


def test_string_inputs_are_planned_with():
  words = keras.Input((), dtype="string")
  ids = keras.layers.StringLookup(vocabulary=["a", "b"])(words)
  x = keras.layers.Embedding(4, 3)(ids)
  model = keras.Model(words, keras.layers.Dense(1)(x))
  model.compile("sgd", "mse")
  tfplace.place_model(model, FAST, strategy="m_etf")
  batch = tf.constant(["a", "b", "c", "a"])
  model.fit(batch, np.ones((4, 1)), verbose=0)
  assert model.placement.training


def test_a_what_if_plan_needs_no_devices_and_takes_any_cluster(tmp_path):
  preset = tfplace.cluster_preset("v100x2")
  path = tmp_path / "c.json"
  tfplace.save_cluster(preset, path)
  ends = ("east", "west")
  devices = tuple(tfplace.Device(name, "GPU", 2.0**30) for name in ends)
  links = tuple(tfplace.Link(*pair, 1e6) for pair in (ends, ends[::-1]))
  named = tfplace.Cluster("named", devices, links)
  model = at.build("two_inputs")
  plans = [
    tfplace.plan_model(model, cluster, strategy="m_etf", batch_size=8)
    for cluster in ("v100x2", str(path), path, preset, named)
  ]
  for plan in plans[:4]:
    assert plan.assignments == plans[0].assignments
    assert plan.devices[-2:] == tuple(f"{at.LOCAL}GPU:{i}" for i in (0, 1))
  assert set(plans[4].devices) <= {"east", "west"}
  plans[0].save(tmp_path / "p.json")
  for given in (plans[0], plans[4], tmp_path / "p.json", plans[0].layers):
    with pytest.raises(ApplyError, match="which this process does not have"):
      tfplace.place_model(model, placement=given)


def test_a_plan_for_unequal_gpus_names_their_kinds():
  model = at.build("two_inputs")
  plan = tfplace.plan_model(
    model, "v100x1+p100x1", strategy="m_etf", batch_size=8
  )
  kinds = [d.kind for d in plan.report.problem.cluster.devices]
  assert kinds == ["GPU-v100", "GPU-p100", "CPU"]
  assert "GPU:0 (v100)" in str(plan)


def test_a_preset_of_absent_gpus_names_the_first():
  with pytest.raises(ApplyError, match="GPU:0") as caught:
    tfplace.place_model(at.build("dense"), "p100x4")
  assert caught.value.device == at.LOCAL + "GPU:0"


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"strategy": "magic"}, "m_etf"),
    ({"cluster": "q9x4"}, "q9x4"),
    ({"cluster": 3}, "a cluster is"),
    ({"budget_s": 0}, "budget_s"),
    ({"budget_s": float("nan")}, "budget_s"),
    ({"verbose": "yes"}, "verbose is 'yes'; it must be 'auto', 0 or 1"),
    ({"verbose": None}, "verbose is None"),
    ({"budget_s": "30"}, "budget_s is '30'; it must be a number"),
    ({"budget_s": True}, "budget_s is True; it must be a number"),
    ({"batch_size": True}, "batch_size is True; it must be a whole number"),
    ({"seed": True}, "seed is True; it must be a whole number"),
    ({"microbatches": True}, "microbatches is True; it must be an integer"),
    ({"microbatches": "all"}, "microbatches is 'all'; .* or 'auto' for place_"),
    ({"costs": "low"}, "'low'; choose one of measured, estimated, grappler"),
    ({"microbatches": np.float32(2)}, "microbatches is .*2.0.*; it must be an"),
    (
      {"microbatches": 2, "max_in_flight": np.True_},
      "max_in_flight is .*True.*; it must be an integer",
    ),
    (
      {"allow_batch_statistics": "no"},
      "allow_batch_statistics is 'no'; it must be True or False",
    ),
    (
      {"max_memory": {"CPU:0": "1GiB", "/device:CPU:0": "2GiB"}},
      "CPU:0' is given two memory sizes, .*'/device:CPU:0'; give it one",
    ),
    ({"check": "no"}, "check is 'no'; it must be True or False"),
    ({"check": None}, "check is None; it must be True or False"),
    ({"keep_together": 5}, "keep_together takes names of layers, .* not 5"),
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": 0.5}, "batch_size is 0.5; it must be a whole number"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": "a"}, "seed is 'a'; it must be a whole number"),
    ({"max_memory": "10GiB"}, "max_memory is a mapping .* not '10GiB'"),
  ],
)
def test_a_bad_request_fails_before_the_model_is_touched(options, said):
  model = at.build("dense")
  with pytest.raises(TfplaceError, match=said):
    tfplace.place_model(model, **options)
  assert not hasattr(model, "placement")


@pytest.mark.parametrize("function", [tfplace.place_model, tfplace.plan_model])
def test_a_model_without_layers_is_refused_by_name(function):
  with pytest.raises(ApplyError, match="'hollow' has no layers"):
    function(keras.Sequential(name="hollow"))


STAGES = ("tracing", "costs", "proof")
SLOW_PARTS = {
  "tracing": (step_source, "trace_keras"),
  "costs": (step_source, "op_graph"),
  "proof": (search.bounds, "tightened_within"),
}


@pytest.mark.parametrize("stage", SLOW_PARTS)
def test_who_waits_for_a_stage_is_told(stage, monkeypatch, caplog, capsys):
  module, name = SLOW_PARTS[stage]
  function = getattr(module, name)
  told = f"planning model 'net': {stage}"

  def slow(*args, **options):
    while told not in caplog.text:
      time.sleep(0.01)
    return function(*args, **options)

  monkeypatch.setattr(progress, "_SILENCE_S", 0.05)
  monkeypatch.setattr(module, name, slow)
  plan = tfplace.plan_model(at.build("dense"), FAST, strategy="m_etf")
  assert plan.seconds[stage] > 0.04  # 0.05, but for the clock's rounding
  assert capsys.readouterr().out == ""


def test_nobody_is_told_of_what_is_quick(caplog, capsys):
  with caplog.at_level(logging.WARNING, "tfplace"):
    tfplace.plan_model(at.build("dense"), FAST, strategy="m_etf")
  assert "planning" not in caplog.text
  assert capsys.readouterr().out == ""


def test_verbose_prints_every_stage_and_what_it_took(capsys):
  plan = tfplace.plan_model(
    at.build("dense"), FAST, strategy="m_etf", verbose=1
  )
  lines = capsys.readouterr().out.splitlines()
  lines = [line for line in lines if "compiling" not in line]
  for stage, line in zip((*STAGES, "search"), lines, strict=False):
    assert line.startswith(f"planning model 'net': {stage}")
  assert lines[-2].startswith("model 'net': Planned in ")
  assert lines[-1] == f"model 'net': {plan.message}"
  assert set(plan.seconds) >= {*STAGES, "search"}


@pytest.mark.parametrize("interactive", [True, False])
def test_auto_prints_on_a_terminal_unless_keras_logs(interactive, monkeypatch):
  assert progress.check_verbose("auto") == progress.LOGGED
  monkeypatch.setattr(progress, "_is_watched", lambda: True)
  monkeypatch.setattr(
    keras.config, "is_interactive_logging_enabled", lambda: interactive
  )
  expected = 1 if interactive else progress.LOGGED
  assert progress.check_verbose("auto") == expected
  assert [progress.check_verbose(v) for v in (0, 1, 2)] == [0, 1, 1]


@pytest.mark.parametrize(
  ("verbose", "level"), [(0, logging.INFO), ("auto", logging.WARNING)]
)
def test_verbose_0_logs_no_warnings(verbose, level, caplog, capsys):
  options = {"strategy": "single", "costs": "estimated", "verbose": verbose}
  with caplog.at_level(logging.INFO, "tfplace"):
    plan = tfplace.plan_model(at.build("dense"), FAST, **options)
  told = f"model 'net': {plan.message}"
  (record,) = [r for r in caplog.records if r.getMessage() == told]
  assert record.levelno == level and capsys.readouterr().out == ""
  assert max(r.levelno for r in caplog.records) == level


def test_proof_and_search_share_the_budget(monkeypatch):
  given = []

  def place(problem, strategy, *, budget_s, **options):
    given.append(budget_s)
    return real(problem, strategy, budget_s=budget_s, **options)

  real = search.placers.place
  monkeypatch.setattr(search.placers, "place", place)
  plan = tfplace.plan_model(
    at.build("dense"), FAST, strategy="m_etf", budget_s=2
  )
  # The stage is a bit longer than the proof, which leaves half at least.
  least_s = max(1.0, 2.0 - plan.seconds["proof"])
  assert least_s - 1e-3 <= given[0] < 2


def test_a_custom_train_step_is_planned_and_placed():
  class Custom(keras.Sequential):
    def train_step(self, data):
      x, y = data
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(self(x, training=True) - y))
      gradients = tape.gradient(loss, self.trainable_variables)
      self.optimizer.apply_gradients(
        zip(gradients, self.trainable_variables, strict=True)
      )
      return {"loss": loss}

  def build():
    model = Custom(at.build("dense", compiled=False).layers, name="net")
    model.compile(at.sgd())
    return model

  x, y = at.batch("dense")
  options = {"epochs": 5, "verbose": 0, "shuffle": False}
  expected = build().fit(x, y, **options).history["loss"]
  model = tfplace.place_model(build(), FAST, strategy="m_etf")
  with at.recorded() as ran:
    got = model.fit(x, y, **options).history["loss"]
  np.testing.assert_allclose(got, expected, atol=1e-5)
  assert len({node.device for node in ran}) > 1


def test_blocks_keep_variables_beside_their_layers():
  inputs = x = keras.Input((16,))
  for i in range(6):
    x = keras.layers.Dense(16, name=f"layer{i}")(x)
  model = keras.Model(inputs, x, name="net")
  model.compile("adam", "mse", jit_compile=False)
  tfplace.place_model(model, FAST, strategy="blocks", batch_size=8)
  at_op = model.placement.assignments
  for i in range(6):
    (product,) = [
      name
      for name in at_op
      if re.fullmatch(rf"net[_\d]*/layer{i}[_\d]*/MatMul", name)
    ]
    assert at_op[f"layer{i}/kernel"] == at_op[product], i
  assert len(set(at_op.values())) == 3


def test_relays_run_where_two_devices_of_a_host_read_them():
  # Of two hosts, CPU:0 is one, and CPU:1 and CPU:2 are the other. Each variable
  # is on CPU:0, and a relay on CPU:1 passes it on.
  inputs = keras.Input((16,))
  x = keras.layers.Dense(16, activation="relu", name="first")(inputs)
  model = keras.Model(inputs, keras.layers.Dense(4, name="last")(x))
  model.compile("sgd", "mse", jit_compile=False)
  config = MicrobatchConfig(3, devices=(1, 2))
  traced = trace_keras(model, 12, microbatches=config)
  problem = tfplace.Problem(op_graph(traced, local_cluster()), local_cluster())
  groups = GroupGraph(problem)
  device = np.zeros(problem.graph.num_ops, int)
  for op, name in enumerate(problem.graph.names):
    device[op] = microbatch_of(name) or name.startswith("relay_to_host_1/")
  row = groups.expand(groups.nearest(groups.contract(device)))
  tfplace.place_model(model, placement=tfplace.Placement(problem, row))
  data = np.ones((12, 16), "float32"), np.ones((12, 4), "float32")
  with at.recorded() as ran:
    model.fit(*data, batch_size=12, verbose=0)
  relays = {n.name for n in ran if n.name.startswith("relay_to_host_1/")}
  assert len(relays) == 4  # kernels and biases
  assert {n.device for n in ran if n.name in relays} == {"CPU:1"}
