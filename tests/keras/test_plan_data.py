"""A plan as plain data: made, wished for, printed, edited, applied later."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tfplace.core import Problem
from tfplace.cost import op_graph
from tfplace.errors import (
  ApplyError,
  ExtractionError,
  InfeasibleError,
  TfplaceError,
)
from tfplace.extraction import trace_keras
from tfplace.keras import layer_groups, state
from tfplace.report.explain.layers import find_layers

CPUS = tuple(f"{at.LOCAL}CPU:{i}" for i in range(3))


def _plan(kind="two_inputs", **options):
  model = at.build(kind)
  options = {"strategy": "m_etf", "batch_size": at.BATCH, **options}
  return model, tfplace.plan_model(model, at.linked(), **options)


def _devices(plan, layer):
  """Devices of the ops, gradients and variables of a layer."""
  return {
    device
    for name, device in plan.assignments.items()
    if re.search(rf"(^|/){layer}(_\d+)?/", name)
  }


def test_planning_alone_leaves_the_model_as_it_was():
  model, plan = _plan()
  assert len(plan.devices) > 1
  assert not hasattr(model, "placement")
  assert {v.value.device for v in model.variables} == {CPUS[0]}
  expected = at.unplaced("two_inputs")[:3]
  np.testing.assert_array_equal(at.losses(model, "two_inputs", 3), expected)


def test_a_plan_is_applied_as_object_file_and_json_alike(tmp_path):
  _, plan = _plan()
  plan.save(tmp_path / "p.json")
  content = json.loads((tmp_path / "p.json").read_text())
  data = json.loads(json.dumps(dict(plan.assignments)))
  for given in (plan, tmp_path / "p.json", content, data):
    model = tfplace.place_model(at.build("two_inputs"), placement=given)
    assert model.placement.assignments == plan.assignments
    assert model.get_layer("first").kernel.value.device in plan.devices


def test_a_printed_plan_names_every_device_with_its_layers():
  _, plan = _plan(keep_together=["first", "second", "last"])
  lines = str(plan).splitlines()
  assert lines[0] == plan.message
  assert list(plan.layers) == ["first", "second", "joined", "last"]
  for layer in ("first", "second", "last"):
    (device,) = _devices(plan, layer)
    assert plan.layers[layer] == device
  shown = {line.split()[0]: line for line in lines if line.startswith("CPU:")}
  assert {at.LOCAL + name for name in shown} >= set(plan.devices)
  for row in plan.device_rows:
    assert row.holds in shown[row.name]
    peak = plan.evaluation.peak_memory_bytes[at.LOCAL + row.name]
    assert row.peak_bytes == peak
  assert sum(row.work for row in plan.device_rows) == pytest.approx(1)
  for note in plan.notes:
    assert f"- {note}" in lines and note[-1] == "." and not note[0].islower()
  assert lines[-1].startswith("- Planned in ")


def _twins():
  """Layers whose scopes TensorFlow numbers, one of them called twice."""
  start = x = keras.Input((8, 8, 3))
  left = keras.layers.Conv2D(4, 3, name="left_conv1")(x)
  left = keras.layers.Conv2D(4, 3, name="left_conv2")(left)
  right = keras.layers.Conv2D(4, 3, name="dense")(x)
  right = keras.layers.Conv2D(4, 3, name="dense_1")(right)
  shared = keras.layers.Conv2D(4, 3, name="shared")
  left, right = shared(left), shared(right)
  x = keras.layers.Concatenate(name="join_1")([left, right])
  x = keras.layers.Flatten(name="flat")(keras.layers.ReLU(name="bend")(x))
  x = keras.layers.Dense(1, name="last")(x)
  model = keras.Model(start, x, name="net")
  model.compile("sgd", "mse", jit_compile=False)
  return model


@pytest.mark.parametrize("kind", ["twins", "lstm", "conv_norm"])
def test_a_plan_and_its_explanation_name_the_users_layers(kind):
  model = _twins() if kind == "twins" else at.build(kind)
  sample = None if kind == "twins" else at.batch(kind)
  plan = tfplace.plan_model(model, at.linked(), strategy="m_etf", sample=sample)
  parts = list(model._flatten_layers(include_self=False))
  known = {layer.name for layer in parts}
  assert set(plan.layers) - {model.name} <= known
  problem = plan.placement.problem
  weight = problem.fastest_us
  graph = problem.graph
  assert {p.rpartition("/")[2] for p in graph.layer_paths if p} <= {
    model.name,
    *known,
  }
  layers = find_layers(graph.names, weight, graph.layer_paths)
  explained = {
    layers.names[i] for i in np.unique(layers.layer_of[weight > 0]).tolist()
  }
  heavy = {layer.name for layer in model.layers if layer.weights}
  assert heavy <= explained
  assert not {n for n in explained - known if re.sub(r"_\d+$", "", n) in known}


def test_an_edited_plan_of_layers_is_followed():
  _, plan = _plan()
  edited = {**plan.layers, "second": "CPU:2"}
  model = tfplace.place_model(at.build("two_inputs"), placement=edited)
  expected = at.unplaced("two_inputs")
  with at.recorded() as ran:
    got = at.losses(model, "two_inputs")
  np.testing.assert_allclose(got, expected, atol=1e-5)
  assert at.devices_of(ran, "second") == {"CPU:2"}


@pytest.mark.parametrize("kind", ["two_inputs", "subclassed"])
def test_what_is_kept_together_is_on_one_device(kind):
  sample = at.batch(kind)
  _, apart = _plan(kind, sample=sample)
  assert len(_devices(apart, "first")) > 1  # of BiasAddGrad and the rest
  _, plan = _plan(kind, sample=sample, keep_together=["fi*t"])
  assert len(_devices(plan, "first")) == 1
  _, plan = _plan(kind, sample=sample, keep_together=[["first", "last"]])
  assert len(_devices(plan, "first") | _devices(plan, "last")) == 1
  assert len(plan.devices) > 1


def test_ops_outside_of_layers_are_kept_together_by_pattern():
  pattern = "gradient_tape/*"
  _, plan = _plan(keep_together=[pattern])
  found = {d for n, d in plan.assignments.items() if n.startswith(pattern[:-1])}
  assert len(found) == 1


def test_slots_are_planned_beside_their_variables():
  model = at.build("dropout")
  traced = trace_keras(model, at.BATCH)
  graph = op_graph(traced, at.linked())
  pairs = list(state.slots(model))
  assert len(pairs) == 8  # two of each of two kernels and two biases
  # Free in the graph as TensorFlow has it, of one group in what is planned.
  grouped = layer_groups.grouped(graph, traced, model, ())
  for problem, beside in (
    (Problem(graph, at.linked()), False),
    (Problem(grouped, at.linked()), True),
  ):
    group = dict(zip(graph.names, problem.group_of, strict=True))
    for slot, owner in pairs:
      assert (group[slot.path] == group[owner.path]) == beside
    assert len({group[owner.path] for _, owner in pairs}) == 4


def test_max_memory_divides_what_would_stay():
  _, free = _plan(strategy="single")
  need = free.evaluation.peak_memory_bytes[CPUS[0]]
  limits = {f"CPU:{i}": 0.8 * need for i in range(3)}
  _, plan = _plan(strategy="auto", budget_s=2, max_memory=limits)
  assert not plan.one_device and plan.single_device is None
  assert "no single device has the memory" in plan.message
  assert max(plan.evaluation.peak_memory_bytes.values()) <= 0.8 * need
  with pytest.raises(InfeasibleError):
    _plan(max_memory=dict.fromkeys(limits, "1KB"))


def test_a_step_too_large_whole_is_compared_in_microbatches():
  wide = [keras.layers.Dense(1024, activation="relu") for _ in range(4)]
  model = keras.Sequential([keras.Input((1024,)), *wide])
  model.compile("sgd", "mse")
  options = {"batch_size": 4096, "budget_s": 1}
  free = tfplace.plan_model(model, "v100x2", **options)
  assert "x one device" in free.message
  need = max(free.single_device.peak_memory_bytes.values())
  limits = {f"GPU:{i}": 0.95 * need for i in range(2)}
  plan = tfplace.plan_model(model, "v100x2", max_memory=limits, **options)
  # One GPU holds it in microbatches, so the CPU does not count.
  assert "CPU:0 alone" not in plan.message
  busy_us = plan.single_device.busy_us
  assert max(busy_us, key=busy_us.__getitem__).endswith("GPU:0")


def test_a_batch_size_that_nobody_gave_is_told():
  options = {"strategy": "m_etf", "budget_s": 1}
  plan = tfplace.plan_model(at.build("dense"), "v100x2", **options)
  assert " per training step of 32 examples " in plan.message
  (note,) = [note for note in plan.notes if "default of 32 examples" in note]
  assert "batch_size" in note
  given = tfplace.plan_model(
    at.build("dense"), "v100x2", batch_size=32, **options
  )
  assert "default of 32" not in str(given)


@pytest.mark.parametrize("strategy", ["auto", "m_etf", "annealing"])
def test_a_device_of_no_memory_holds_nothing(strategy):
  options = {"strategy": strategy, "budget_s": 1}
  _, plan = _plan("dense", **options, max_memory={"CPU:0": 0})
  assert plan.evaluation.peak_memory_bytes[CPUS[0]] == 0
  assert len(plan.devices) > 1
  nothing = {f"CPU:{i}": 0 for i in range(3)}
  with pytest.raises(InfeasibleError):
    _plan("dense", **options, max_memory=nothing)


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"max_memory": {"GPU:7": 1}}, "GPU:7"),
    ({"max_memory": {None: 1}}, "None names no devices"),
    ({"max_memory": {"CPU:0": "1 gb"}}, "'1 gb' is no memory size"),
    ({"max_memory": {"CPU:0": "ten"}}, "'ten' is no memory size"),
    ({"max_memory": {"CPU:0": None}}, "None is no memory size"),
    ({"max_memory": {"CPU:0": -1}}, "-1 is no memory size"),
    ({"max_memory": {"CPU:0": float("nan")}}, "nan is no memory size"),
    ({"max_memory": {"CPU:0": [1]}}, r"\[1\] is no memory size"),
    ({"max_memory": {"CPU:0": True}}, "True is no memory size"),
    ({"max_memory": {"CPU:0": 10**400}}, r"10+\.\.\.0+ is no memory size"),
    ({"keep_together": ["frist"]}, "'frist'.* did you mean 'first'"),
    ({"keep_together": [3]}, "keep_together takes"),
    ({"keep_together": [[]]}, "keep_together takes"),
  ],
)
def test_constraints_that_mean_nothing_are_named(options, said):
  with pytest.raises(TfplaceError, match=said):
    _plan(**options)


def test_constraints_and_a_given_placement_do_not_go_together():
  with pytest.raises(ApplyError, match="max_memory is for planning"):
    tfplace.place_model(
      at.build("dense"), placement=at.SPLIT, max_memory={"CPU:0": 1}
    )


def test_a_plan_to_stay_leaves_the_model_alone():
  model = at.build("dense")
  slow = at.linked(bandwidth=1e-3, latency_us=1e6)
  plan = tfplace.plan_model(model, slow, batch_size=at.BATCH, budget_s=1)
  assert plan.one_device
  model = tfplace.place_model(model, placement=plan)
  assert model.placement is plan and model.supports_jit
  with at.recorded() as ran:
    at.losses(model, "dense", 1)
  assert {node.device for node in ran} == {"CPU:0"}


def _placed_as(model, other):
  devices = [variable.value.device for variable in other.weights]
  assert len(set(devices)) > 1
  return [variable.value.device for variable in model.weights] == devices


def _trained():
  """A subclassed model, its variables made by its first step."""
  model = at.build("subclassed")
  at.losses(model, "subclassed", 1)
  return model


def test_a_plan_fits_a_subclassed_model_saved_and_loaded(tmp_path):
  model = _trained()
  model.save(tmp_path / "m.keras")
  _, placement = at.unit_placement(model, "subclassed")
  placement.save(tmp_path / "p.json")
  tfplace.place_model(model, placement=placement)
  for plan in (placement, tmp_path / "p.json"):
    loaded = keras.models.load_model(tmp_path / "m.keras")
    # net/first/kernel is first/kernel by now: that is Keras's doing.
    paths = {variable.path for variable in model.weights}
    assert not paths & {variable.path for variable in loaded.weights}
    tfplace.place_model(loaded, placement=plan)
    assert _placed_as(loaded, model)
    assert np.isfinite(at.losses(loaded, "subclassed", 1)).all()
  _, placement = at.unit_placement(loaded, "subclassed", seed=1)
  tfplace.place_model(loaded, placement=placement)
  assert _placed_as(
    tfplace.place_model(_trained(), placement=placement), loaded
  )


def test_a_plan_of_a_model_with_other_names_is_refused(tmp_path):
  _, plan = _plan("dense")
  plan.save(tmp_path / "p.json")
  stranger = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(3, name="else")], name="net"
  )
  for given in (plan, tmp_path / "p.json"):
    with pytest.raises(ApplyError, match="'net/else/kernel'"):
      tfplace.place_model(stranger, placement=given)
  # As plain data it may lack what it likes; the step tells.
  other = {f"other/{name}": device for name, device in plan.assignments.items()}
  other["net_1/first_1/MatMul"] = CPUS[1]
  model = tfplace.place_model(at.build("dense"), placement=other)
  with pytest.raises(ApplyError, match=r"names 1 of the ops .*'other/"):
    at.losses(model, "dense", 1)


def test_sequences_of_any_length_are_planned_with_a_sample():
  def build():
    keras.utils.set_random_seed(7)
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 4, name="embedding")(tokens)
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(
      tokens, keras.layers.Dense(1, name="last")(x), name="net"
    )
    model.compile("sgd", "mse", jit_compile=False)
    return model

  def batches():
    shapes = tf.TensorSpec((None, None), tf.int32), tf.TensorSpec((None, 1))
    rows = [
      (np.ones((2, n), "int32"), np.ones((2, 1), "float32")) for n in (3, 5)
    ]
    return tf.data.Dataset.from_generator(lambda: rows, output_signature=shapes)

  expected = build().fit(batches(), verbose=0).history["loss"]
  model = tfplace.place_model(build(), at.linked(), strategy="m_etf")
  with pytest.raises(ExtractionError, match=r"plan_model\(model, sample"):
    model.fit(batches(), verbose=0)
  sample = np.ones((2, 4), "int32"), np.ones((2, 1), "float32")
  model = build()
  plan = tfplace.plan_model(model, at.linked(), strategy="m_etf", sample=sample)
  got = tfplace.place_model(model, placement=plan).fit(batches(), verbose=0)
  np.testing.assert_allclose(got.history["loss"], expected, atol=1e-5)
  assert {v.value.device for v in model.variables} & set(CPUS[1:])


def _jit_model(jit_compile):
  keras.utils.set_random_seed(7)
  model = at.dense("net")
  model.compile(at.sgd(), "mse", jit_compile=jit_compile)
  return model


@pytest.mark.parametrize("early", [True, False])
def test_xla_is_kept_where_the_model_stays_on_one_device(early):
  # Planned in the middle of the first fit; compiled before or after placing.
  x, y = at.batch("dense")
  slow, fast = at.linked(bandwidth=1e-3, latency_us=1e6), at.linked()
  for cluster, strategy, jit in (
    (slow, "single", True),
    (fast, "m_etf", False),
  ):
    model = _jit_model(True)
    tfplace.place_model(model, cluster, strategy=strategy)
    if not early:
      model.compile(at.sgd(), "mse", jit_compile=True)
    losses = model.fit(x, y, epochs=4, verbose=0, shuffle=False).history["loss"]
    assert model.jit_compile is jit and model.supports_jit is jit
    expected = _jit_model(False).fit(x, y, epochs=4, verbose=0, shuffle=False)
    np.testing.assert_allclose(losses, expected.history["loss"], atol=1e-5)


def test_a_plan_goes_on_where_a_device_is_gone(tmp_path):
  model, old = _plan()
  old.save(tmp_path / "p.json")
  whole = at.linked()
  left = tfplace.Cluster(
    "left",
    whole.devices[:2],
    tuple(k for k in whole.links if CPUS[2] not in (k.src, k.dst)),
  )
  for start in (old, str(tmp_path / "p.json"), old.assignments):
    plan = tfplace.plan_model(
      model, left, batch_size=at.BATCH, budget_s=1, init_placement=start
    )
    assert set(plan.devices) <= set(CPUS[:2])
    assert len(plan.assignments) == len(old.assignments)


def test_a_start_is_for_searches_and_one_split():
  model = at.build("two_inputs")
  for options, text in (
    ({"strategy": "heft"}, "annealing, ordered and auto can"),
    ({"microbatches": "auto"}, "init_placement is of a step"),
    ({"init_placement": {}}, "a placement is a Placement"),
    (
      {"init_placement": {"order": "zz", "assignments": {"x": CPUS[0]}}},
      "order: 'zz' is not one of arrival, rank",
    ),
  ):
    given = {"init_placement": {"x": CPUS[0]}, **options}
    with pytest.raises(TfplaceError, match=text):
      tfplace.plan_model(model, at.linked(), batch_size=at.BATCH, **given)
