"""A placed model whose step is split trains as the unplaced, unsplit one."""

import dataclasses
import gc
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfplace
from tests.testing import placed_models as at
from tests.testing.microbatched_fits import (
  BATCH,
  MODELS,
  assert_same,
  build,
  fitted,
  normal,
  placement_of,
  unplaced,
)
from tfplace.core.microbatches import MicrobatchConfig, microbatch_of
from tfplace.errors import ApplyError, ExtractionError, InfeasibleError
from tfplace.extraction.microbatches import microbatched_step


def halves(model, microbatches):
  """Microbatch i on device i + 1, what all share on device 0."""
  graph = placement_of(model, microbatches).problem.graph
  devices = {0: "CPU:1", 1: "CPU:2"}
  return {
    name: devices.get(microbatch_of(name), "CPU:0") for name in graph.names
  }


def test_each_microbatch_runs_on_its_device():
  expected = unplaced("dense")
  model = build("dense")
  plan = halves(model, MicrobatchConfig(2))
  tfplace.place_model(model, placement=plan)
  with at.recorded() as ran:
    assert_same(fitted(model, "dense"), expected)
  for part, device in (("microbatch_0", "CPU:1"), ("microbatch_1", "CPU:2")):
    backward = f"{part}/gradient_tape/"
    found = {n.device for n in ran if n.name.startswith(backward)}
    assert found == {device}


def test_sums_and_relays_of_two_hosts_train_the_same():
  name, config = "masked_lstm", MicrobatchConfig(4, devices=(2, 2))
  expected = unplaced(name)
  model = build(name)
  placement = placement_of(model, config)
  tfplace.place_model(model, placement=placement)
  assert model.placement.microbatch_config == config
  with at.recorded() as ran:
    assert_same(fitted(model, name), expected)
  same = at.planned_ops(ran, placement)
  assert all(node.device == planned for node, planned in same)
  scopes = {node.name.partition("/")[0] for node, _ in same}
  assert "accumulate_on_2_and_2" in scopes


def test_a_file_has_the_sums_of_its_plan(tmp_path):
  name = "dense"
  expected = unplaced(name, epochs=1)
  plan = tfplace.plan_model(
    build(name),
    at.local_cluster(),
    strategy="data_parallel",
    batch_size=BATCH,
    microbatches=6,
  )
  assert plan.microbatch_config.devices == (3,)
  sums = {n for n in plan.assignments if n.startswith("accumulate_on_3/")}
  assert len(sums) == 5 * len(build(name).trainable_weights)
  plan.save(tmp_path / "p.json")
  for given in (plan, tmp_path / "p.json"):
    model = tfplace.place_model(build(name), placement=given)
    assert model.placement.microbatch_config == plan.microbatch_config
    assert_same(fitted(model, name, 1), expected)


def test_loops_outlive_the_graph_that_microbatches_are_copies_of(monkeypatch):
  step = microbatched_step.microbatched_train_step

  def collecting(*args):
    result = step(*args)
    gc.collect()
    return result

  monkeypatch.setattr(microbatched_step, "microbatched_train_step", collecting)
  name = "masked_lstm"
  expected = unplaced(name, epochs=1)
  model = build(name)
  tfplace.place_model(model, placement=placement_of(model, MicrobatchConfig(2)))
  assert_same(fitted(model, name, 1), expected)


def test_a_batch_smaller_than_its_microbatches_trains_alike():
  # The last batch has one example: two of three microbatches are empty.
  expected = fitted(build("dense"), "dense", 1, batch_size=7)
  model = build("dense")
  placement = placement_of(model, MicrobatchConfig(3, 1))
  tfplace.place_model(model, placement=placement)
  assert model.placement.max_in_flight == 1
  assert_same(fitted(model, "dense", 1, batch_size=7), expected)


def test_a_batch_without_examples_trains_as_unplaced():
  _, x, y = MODELS["dense"]
  found = []
  for microbatches in (1, 3):
    model = build("dense")
    if microbatches > 1:
      plan = {"first": "CPU:1"}
      tfplace.place_model(model, placement=plan, microbatches=microbatches)
    results = [model.train_on_batch(x[:n], y[:n]) for n in (BATCH, 0, BATCH)]
    found.append((results, model.get_weights()))
  np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
  for mine, theirs in zip(found[1][1], found[0][1], strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


def test_a_plan_of_layers_places_each_microbatch():
  model = build("dense")
  expected = unplaced("dense", epochs=1)
  tfplace.place_model(model, placement=at.SPLIT, microbatches=2)
  assert model.placement.microbatches == 2
  with at.recorded() as ran:
    assert_same(fitted(model, "dense", 1), expected)
  for part in ("microbatch_0", "microbatch_1"):
    for layer, device in at.SPLIT.items():
      forward = at.devices_of(ran, f"{part}/net_1/{layer}", "")
      backward = f"{part}/gradient_tape/net_1/{layer}"
      assert forward == at.devices_of(ran, backward) == {device}


def test_it_is_planned_in_microbatches_kept_edited_and_applied(tmp_path):
  name = "dense"
  expected = unplaced(name, epochs=1)
  cluster = at.local_cluster()
  plan = tfplace.plan_model(
    build(name),
    cluster,
    strategy="m_topo",
    batch_size=BATCH,
    microbatches=3,
    max_in_flight=2,
  )
  assert (plan.microbatches, plan.max_in_flight) == (3, 2)
  assert " examples in 3 microbatches on " in plan.message
  plan.save(tmp_path / "p.json")
  edited = dict(plan.assignments)
  edited["microbatch_1/net/last/MatMul"] = "CPU:2"
  for given in (plan, plan.placement, tmp_path / "p.json", edited):
    model = tfplace.place_model(build(name), placement=given)
    told = model.placement
    assert (told.microbatches, told.max_in_flight) == (3, 2)
  with at.recorded() as ran:
    assert_same(fitted(model, name, 1), expected)
  assert any(n.name.startswith("microbatch_2/net") for n in ran)
  with pytest.raises(
    ApplyError, match="3 microbatches with 2 in flight, and 2"
  ):
    tfplace.place_model(build(name), placement=plan, microbatches=2)


def test_sizes_are_planned_kept_in_the_file_and_applied(tmp_path):
  # The last of three batches has 6 of 8 examples.
  name = "masked_lstm"
  expected = unplaced(name, epochs=1)
  plan = tfplace.plan_model(
    build(name),
    at.local_cluster(),
    strategy="m_topo",
    batch_size=BATCH,
    microbatches=[5, 2, 1],
    max_in_flight=2,
  )
  sizes = plan.microbatch_config.sizes
  assert sizes == (5, 2, 1)
  assert "3 microbatches of 5, 2 and 1 examples on" in plan.message
  plan.save(tmp_path / "p.json")
  for given in (plan, plan.placement, tmp_path / "p.json"):
    model = tfplace.place_model(build(name), placement=given)
    assert model.placement.microbatch_config.sizes == sizes
  with at.recorded() as ran:
    assert_same(fitted(model, name, 1), expected, share=2e-6)
  slices = "microbatch_0/part_of_batch/examples_5/strided_slice"
  assert slices in plan.assignments
  assert slices in {node.name for node in ran}
  told = "of 5, 2 and 1 examples with 2 in flight, and 3 microbatches with"
  with pytest.raises(ApplyError, match=told):
    tfplace.place_model(
      build(name), placement=plan, microbatches=3, max_in_flight=2
    )


def test_sizes_that_are_not_of_the_batch_are_one_sentence():
  told = r"\[5, 2\], in all 7 examples, and the batch has 8"
  with pytest.raises(ExtractionError, match=told):
    tfplace.plan_model(
      build("dense"), "v100x2", batch_size=BATCH, microbatches=[5, 2]
    )


def test_place_model_plans_the_split_step_at_the_first_fit():
  model = tfplace.placed(
    strategy="m_topo", microbatches=2, costs="estimated", verbose=0
  )(lambda: build("dense"))()
  expected = unplaced("dense", epochs=1)
  with at.recorded() as ran:
    assert_same(fitted(model, "dense", 1), expected)
  assert model.placement.microbatches == 2
  assert any(n.name.startswith("microbatch_1/net") for n in ran)
  _, x, y = MODELS["dense"]
  assert np.isfinite(model.evaluate(x, y, verbose=0)).all()
  model.compile("sgd", "mae")
  assert np.isfinite(model.train_on_batch(x, y)).all()


def test_on_one_device_the_step_is_split_all_the_same():
  model = build("dense")
  expected = unplaced("dense", epochs=1)
  one = at.local_cluster()
  one = tfplace.Cluster("one", one.devices[:1], ())
  tfplace.place_model(model, one, batch_size=BATCH, microbatches=2)
  assert model.placement.one_device and model.placement.microbatches == 2
  with at.recorded() as ran:
    assert_same(fitted(model, "dense", 1), expected)
  assert any(n.name.startswith("microbatch_1/net") for n in ran)


class OwnStep(keras.Sequential):
  def train_step(self, data):
    return super().train_step(data)


def normalized():
  return at.conv_norm("net")


class Remembering(layers.Layer):
  """A weight for each example of the batch."""

  def build(self, shape):
    self.memory = self.add_weight(shape=(BATCH, shape[-1]))

  def call(self, x):
    return x + self.memory


REFUSED = {
  "statistics": (
    normalized,
    {},
    "'second' .BatchNormalization. normalizes",
  ),
  "own step": (
    lambda: OwnStep([keras.Input((6,)), layers.Dense(3)], name="net"),
    {},
    "model 'net' cannot be split: it has a train_step of its own, which must"
    r" call tfplace.split_gradients\(self, data\) once, and calls it 0 times",
  ),
  "examples": (MODELS["dense"][0], {"microbatches": 9}, "the batch has 8"),
  "none": (
    MODELS["dense"][0],
    {"microbatches": 0},
    "microbatches is 0; it must",
  ),
  "of the batch's size": (
    lambda: keras.Sequential(
      [keras.Input((6,)), Remembering(), layers.Dense(3)], name="net"
    ),
    {},
    f"model 'net' cannot be traced at batch size {BATCH} in 2 microbatches:"
    ".*Dimensions must be equal, but are 4 and 8",
  ),
  "in flight": (
    MODELS["dense"][0],
    {"max_in_flight": -1},
    "max_in_flight is -1",
  ),
}


def test_numbers_of_numpy_are_numbers():
  options = {"seed": 3, "microbatches": 2, "max_in_flight": 1}
  plans = [
    tfplace.plan_model(
      build(None, MODELS["dense"][0]),
      at.local_cluster(),
      strategy="cpu",
      batch_size=kind(BATCH),
      **{name: kind(value) for name, value in options.items()},
    )
    for kind in (int, np.int64)
  ]
  assert (
    plans[0].microbatch_config
    == plans[1].microbatch_config
    == MicrobatchConfig(2, 1, devices=(3,))
  )
  assert type(plans[1].microbatches) is type(plans[1].max_in_flight) is int
  times = {plan.evaluation.step_time_us for plan in plans}
  assert len(times) == 1


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_split_says_why(case):
  function, options, said = REFUSED[case]
  options = {"microbatches": 2, **options}
  with pytest.raises(ExtractionError, match=said):
    tfplace.plan_model(
      build(None, function),
      at.local_cluster(),
      strategy="cpu",
      batch_size=BATCH,
      **options,
    )
  model = build(None, function)
  with pytest.raises(ExtractionError, match=said):
    tfplace.place_model(
      model, at.local_cluster(), strategy="cpu", batch_size=BATCH, **options
    )
    model.fit(*at.batch("dense"), batch_size=BATCH, verbose=0)


def fast_cluster():
  """Devices of this process without op overhead, on fast links."""
  local = at.local_cluster()
  devices = tuple(
    dataclasses.replace(device, op_overhead_us=0.0) for device in local.devices
  )
  links = tuple(
    dataclasses.replace(link, bandwidth_bytes_per_us=1e6, latency_us=0.1)
    for link in local.links
  )
  return tfplace.Cluster("fast", devices, links)


def chosen(model, cluster, **options):
  options = {"batch_size": BATCH, "budget_s": 5.0, **options}
  return tfplace.place_model(model, cluster, microbatches="auto", **options)


AMPLIFIED = 1e-4  # Adam divides rounding by small second moments


def much_work():
  return keras.Sequential(
    [
      keras.Input((6, 6, 2)),
      layers.Conv2D(64, 3, padding="same", activation="relu", name="first"),
      layers.Conv2D(64, 3, padding="same", activation="relu", name="second"),
      layers.Flatten(),
      layers.Dense(3, name="last"),
    ],
    name="net",
  )


def test_the_split_that_is_chosen_trains_as_the_whole_step():
  name = "convolutional"  # its batches
  expected = fitted(build(name, much_work), name)
  model = chosen(build(name, much_work), fast_cluster())
  told = model.placement
  assert told.microbatches in (2, 3, 4, 6, 8)
  assert f"is split into {told.microbatches} microbatches" in str(told)
  # One device runs the whole step, not its parts one after the other.
  whole = tfplace.plan_model(
    build(name, much_work), fast_cluster(), strategy="single", batch_size=BATCH
  )
  alone = told.single_device.step_time_us
  assert alone == whole.evaluation.step_time_us
  assert told.evaluation.step_time_us < alone
  with at.recorded() as ran:
    assert_same(fitted(model, name), expected, AMPLIFIED)
  parts = {node.name.partition("/")[0] for node in ran}
  assert f"microbatch_{told.microbatches - 1}" in parts


@pytest.mark.parametrize("strategy", ["data_parallel", "pipeline"])
def test_convolutions_by_rank_train_the_same(strategy):
  # oneDNN merges convolutions with their biases after the order is enforced.
  name = "convolutional"
  expected = fitted(build(name, much_work), name)
  model = build(name, much_work)
  tfplace.place_model(
    model,
    fast_cluster(),
    strategy=strategy,
    microbatches=4,
    order="rank",
    batch_size=BATCH,
    budget_s=1,
  )
  assert_same(fitted(model, name), expected, AMPLIFIED)


def test_the_number_is_chosen_at_the_first_fit_too():
  build_it = lambda: build("convolutional", much_work)  # noqa: E731
  expected = fitted(build_it(), "convolutional", 1)
  model = tfplace.placed(
    cluster=fast_cluster(), microbatches="auto", budget_s=5.0
  )(build_it)()
  assert model.placement is None
  assert_same(fitted(model, "convolutional", 1), expected, AMPLIFIED)
  assert model.placement.microbatches > 1


def test_memory_that_the_whole_step_lacks_splits_it():
  # Whole it takes 19.2 MiB, in two microbatches 16.9 and, one in flight, 10.3.
  model = build("convolutional", much_work)
  plan = tfplace.plan_model(
    model, "v100x1", batch_size=512, budget_s=5.0, microbatches="auto",
    max_memory={"GPU:0": "12MiB", "CPU:0": 1},
  )  # fmt: skip
  assert (plan.microbatches, plan.max_in_flight) == (2, 1)
  assert plan.evaluation.feasible
  assert "since whole it does not fit in memory" in str(plan)
  with pytest.raises(InfeasibleError, match="in up to 16 microbatches"):
    tfplace.plan_model(
      model, "v100x1", batch_size=512, budget_s=5.0, microbatches="auto",
      max_memory={"GPU:0": "1MiB", "CPU:0": 1},
    )  # fmt: skip


WHOLE_STEPS = {
  "launch-bound": (
    MODELS["dense"][0],
    {},
    # On a busy machine the budget may end before the proof.
    "it takes at least|nothing faster than .* microbatches",
  ),
  "statistics": (
    normalized,
    {},
    "'second' .BatchNormalization. normalizes",
  ),
  "own step": (REFUSED["own step"][0], {}, "it has a train_step of its own"),
}


@pytest.mark.parametrize("case", WHOLE_STEPS)
def test_a_step_that_is_left_whole_says_why(case):
  function, options, said = WHOLE_STEPS[case]
  plan = tfplace.plan_model(
    build(None, function), "v100x2", batch_size=BATCH, budget_s=6.0,
    microbatches="auto", **options,
  )  # fmt: skip
  assert plan.microbatches == 1
  (note,) = [n for n in plan.notes if n.startswith("The step is left whole")]
  assert re.search(said, note)


def test_a_plan_that_is_given_leaves_nothing_to_choose():
  with pytest.raises(ApplyError, match="microbatches='auto' is for planning"):
    tfplace.place_model(build("dense"), placement=at.SPLIT, microbatches="auto")


def test_a_sequential_model_is_told_what_a_split_would_give():
  wide = [layers.Dense(1024, activation="relu") for _ in range(3)]
  model = keras.Sequential([keras.Input((1024,)), *wide], name="net")
  model.compile("sgd", "mse")
  told = lambda cluster: tfplace.plan_model(  # noqa: E731
    model, cluster, batch_size=4096, budget_s=20.0
  )
  plan = told("v100x4")
  assert plan.microbatches == 1
  assert "In 4 microbatches it would take about" in str(plan)
  # These devices share one machine's cores.
  assert "would take" not in str(told(fast_cluster()))


def test_inference_cannot_be_split():
  model = at.build("dense", compiled=False)
  with pytest.raises(ExtractionError, match="only a training step is split"):
    tfplace.plan_model(model, at.local_cluster(), microbatches=2)


def two_norms():
  image = keras.Input((8, 8, 3))
  x = layers.Conv2D(4, 3, activation="relu", use_bias=False)(image)
  norm = layers.BatchNormalization()
  x = norm(layers.Activation("tanh")(norm(x)))  # two updates of one statistic
  x = layers.Conv2D(3, 3, use_bias=False)(x)
  x = layers.Flatten()(layers.BatchNormalization()(x))
  return keras.Model(image, layers.Dense(3)(x), name="net")


def test_statistics_are_split_where_that_is_allowed():
  model = build(None, normalized)
  tfplace.place_model(
    model,
    at.local_cluster(),
    strategy="m_topo",
    batch_size=BATCH,
    microbatches=2,
    allow_batch_statistics=True,
  )
  x, y = at.batch("conv_norm")
  found = [model.train_on_batch(x, y)[0] for _ in range(5)]
  assert found[-1] < found[0]


def test_statistics_are_of_the_microbatches_that_have_examples():
  function = lambda: keras.Sequential(  # noqa: E731
    [keras.Input((6,)), layers.BatchNormalization(name="norm")]
  )
  model = build(None, function)
  model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
  tfplace.place_model(
    model, at.local_cluster(), strategy="m_topo", batch_size=7, microbatches=2,
    allow_batch_statistics=True,
  )  # fmt: skip
  x = MODELS["dense"][1]
  model.fit(x, x, batch_size=7, shuffle=False, verbose=0)
  # 22 examples in batches of 7: the last has one, and one part none.
  mean = np.zeros(6)
  for begin, middle, end in (
    (0, 4, 7),
    (7, 11, 14),
    (14, 18, 21),
    (21, 22, 22),
  ):
    parts = [x[begin:middle], x[middle:end]]
    means = [part.mean(axis=0) for part in parts if len(part)]
    mean = 0.99 * mean + 0.01 * np.mean(means, axis=0)
  found = model.get_layer("norm").moving_mean
  np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-7)


def test_statistics_equal_those_of_mirrored_replicas():
  def of_microbatches():
    model = build(None, two_norms)
    microbatches = MicrobatchConfig(2, allow_batch_statistics=True)
    tfplace.place_model(
      model,
      placement=placement_of(model, microbatches),
      allow_batch_statistics=True,
    )
    return model

  strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
  with strategy.scope():
    mirrored = build(None, two_norms)
  data = (normal(8, 8, 3)[: 2 * BATCH], normal(3)[: 2 * BATCH])
  runs = []
  for model in (of_microbatches(), mirrored):
    batches = tf.data.Dataset.from_tensor_slices(data)
    history = model.fit(batches.batch(BATCH), epochs=10, verbose=0)
    runs.append((model, history.history))
  (mine, found), (_, expected) = runs
  for name, values in expected.items():  # 20 steps
    np.testing.assert_allclose(found[name], values, rtol=1e-5)
  for weight, replicated in zip(mine.weights, mirrored.weights, strict=True):
    copies = strategy.experimental_local_results(replicated.value)
    # Each replica keeps moving statistics of its own; other weights agree.
    mean = np.mean([copy.numpy() for copy in copies], axis=0)
    atol = 1e-5 * max(np.abs(mean).max(), 1e-3)
    np.testing.assert_allclose(weight.numpy(), mean, rtol=0, atol=atol)
    own = [np.abs(copy.numpy() - mean).max() for copy in copies]
    assert ("moving" in weight.path) == (max(own) > 10 * atol)
