"""A placed model whose step is split trains as the unplaced, unsplit one."""

import dataclasses
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfplace
from tests.testing import placed_models as at
from tests.testing.clusters import linked
from tests.testing.placed_models import (
  BATCH,
  assert_same,
  build_fitted,
  fitted,
  split_placement,
  unplaced_fit,
)
from tfplace.errors import ApplyError, ExtractionError
from tfplace.graph.microbatches import VariantConfig
from tfplace.plan.local_devices import local_cluster
from tfplace.variants.microbatches import microbatched_step

AMPLIFIED = 1e-4  # Adam divides rounding by small second moments


def plan_of(name, cluster=None, **options):
  options = {"strategy": "m_topo", "batch_size": BATCH, **options}
  model = build_fitted(name)
  return tfplace.plan_model(model, cluster or local_cluster(), **options)


def test_a_plan_of_layers_places_each_microbatch():
  model = build_fitted("dense")
  tfplace.place_model(model, placement=at.SPLIT, microbatches=2)
  with at.recorded() as ran:
    found = fitted(model, "dense")
  assert_same(found, unplaced_fit("dense"))
  for part in ("microbatch_0", "microbatch_1"):
    for layer, device in at.SPLIT.items():
      forward = at.devices_of(ran, f"{part}/net_1/{layer}", "")
      backward = f"{part}/gradient_tape/net_1/{layer}"
      assert forward == at.devices_of(ran, backward) == {device}


def test_a_model_of_frozen_weights_trains_as_without_microbatches():
  model = build_fitted("dense")
  model.trainable = False
  tfplace.place_model(model, placement=at.SPLIT, microbatches=2)
  before = model.get_weights()
  fitted(model, "dense")
  for value, same in zip(before, model.get_weights(), strict=True):
    np.testing.assert_array_equal(value, same)


def test_sums_of_two_hosts_outlive_their_traced_template(monkeypatch):
  step = microbatched_step.microbatched_train_step

  def collecting(*args):
    result = step(*args)
    gc.collect()  # Loops are copies of those in the template.
    return result

  monkeypatch.setattr(microbatched_step, "microbatched_train_step", collecting)
  name, config = "masked_recurrent", VariantConfig(4, devices=(2, 2))
  model = build_fitted(name)
  placement = split_placement(model, config)
  tfplace.place_model(model, placement=placement)
  assert model.placement.variant == config
  with at.recorded() as ran:
    found = fitted(model, name)
  assert_same(found, unplaced_fit(name))
  same = at.planned_ops(ran, placement)
  wrong = [node.name for node, planned in same if node.device != planned]
  # A read is beside its variable; numbers of reads differ between traces.
  assert not [name for name in wrong if not name.endswith("/ReadVariableOp")]
  scopes = {node.name.partition("/")[0] for node, _ in same}
  assert "accumulate_on_2_and_2" in scopes


def test_a_plan_keeps_sizes_and_sums_in_its_file(tmp_path):
  # The last of three batches has 6 of 8 examples.
  name = "dense"
  plan = plan_of(name, microbatches=[5, 2, 1], max_in_flight=2)
  config = plan.variant
  assert (config.sizes, config.max_in_flight) == ((5, 2, 1), 2)
  assert config.devices == (3,)
  assert "3 microbatches of 5, 2 and 1 examples on" in plan.message
  plan.save(tmp_path / "p.json")
  edited = dict(plan.assignments)
  edited["microbatch_1/net/last/MatMul"] = "CPU:2"
  for given in (plan, plan.placement, edited, tmp_path / "p.json"):
    model = tfplace.place_model(build_fitted(name), placement=given)
    assert model.placement.variant == config
  with at.recorded() as ran:
    found = fitted(model, name)
  assert_same(found, unplaced_fit(name), share=2e-6)
  slices = "microbatch_0/part_of_batch/examples_5/strided_slice"
  assert slices in plan.assignments
  assert slices in {node.name for node in ran}
  told = "of 5, 2 and 1 examples with 2 in flight, and 3 microbatches with"
  with pytest.raises(ApplyError, match=told):
    tfplace.place_model(
      model, placement=plan, microbatches=3, max_in_flight=2
    )  # fmt: skip


def test_inference_is_neither_split_nor_recomputed():
  model = at.build("dense", compiled=False)
  for options in ({"microbatches": 2}, {"recompute": "all"}):
    with pytest.raises(ExtractionError, match="only a training step is split"):
      tfplace.plan_model(model, local_cluster(), **options)


def fast_cluster():
  """Devices of this process without op overhead, on fast links."""
  devices = local_cluster().devices
  return linked(
    [dataclasses.replace(device, op_overhead_us=0.0) for device in devices],
    *(1e6, 0.1),
  )


def test_the_split_chosen_at_the_first_fit_trains_as_the_whole():
  name = "convolutional"
  build = tfplace.placed(
    cluster=fast_cluster(), microbatches="auto", budget_s=2.0
  )(lambda: build_fitted(name))
  model = build()
  assert model.placement is None
  with at.recorded() as ran:
    found = fitted(model, name)
  assert_same(found, unplaced_fit(name), AMPLIFIED)
  told = model.placement
  assert told.variant.count in (2, 3, 4, 6, 8)
  assert f"is split into {told.variant.count} microbatches" in str(told)
  # One device runs the whole step, not its parts one after the other.
  whole = plan_of(name, fast_cluster(), strategy="single").evaluation
  assert told.single_device.step_time_us == whole.step_time_us
  assert told.evaluation.step_time_us < whole.step_time_us
  parts = {node.name.partition("/")[0] for node in ran}
  assert f"microbatch_{told.variant.count - 1}" in parts


def test_statistics_are_of_the_microbatches_that_have_examples():
  def function():
    return keras.Sequential(
      [keras.Input((6,)), layers.BatchNormalization(name="norm")]
    )

  model = build_fitted(function)
  model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
  tfplace.place_model(
    model, local_cluster(), strategy="m_topo", batch_size=7, microbatches=2,
    allow_batch_statistics=True,
  )  # fmt: skip
  x, _ = at.examples("dense")
  model.fit(x, x, batch_size=7, shuffle=False, verbose=0)
  # 22 examples in batches of 7: the last has one, and one part none.
  mean = np.zeros(6)
  batches = ((0, 4, 7), (7, 11, 14), (14, 18, 21), (21, 22, 22))
  for begin, middle, end in batches:
    parts = [x[begin:middle], x[middle:end]]
    means = [part.mean(axis=0) for part in parts if len(part)]
    mean = 0.99 * mean + 0.01 * np.mean(means, axis=0)
  found = model.get_layer("norm").moving_mean
  np.testing.assert_allclose(found, mean, rtol=1e-5, atol=1e-7)


def two_norms():
  image = keras.Input((8, 8, 3))
  x = layers.Conv2D(4, 3, activation="relu", use_bias=False)(image)
  norm = layers.BatchNormalization()
  x = norm(layers.Activation("tanh")(norm(x)))  # two updates of one statistic
  x = layers.Conv2D(3, 3, use_bias=False)(x)
  x = layers.Flatten()(layers.BatchNormalization()(x))
  return keras.Model(image, layers.Dense(3)(x), name="net")


def test_statistics_equal_those_of_mirrored_replicas():
  split = build_fitted(two_norms)
  config = VariantConfig(2, allow_batch_statistics=True)
  tfplace.place_model(
    split, placement=split_placement(split, config), allow_batch_statistics=True
  )
  strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
  with strategy.scope():
    mirrored = build_fitted(two_norms)
  rng = np.random.default_rng(0)
  data = tuple(
    rng.normal(size=(2 * BATCH, *shape)).astype("float32")
    for shape in ((8, 8, 3), (3,))
  )
  histories = []
  for model in (split, mirrored):
    batches = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    history = model.fit(batches, epochs=5, verbose=0)
    histories.append(history.history)
  for name, values in histories[1].items():  # 10 steps
    np.testing.assert_allclose(histories[0][name], values, rtol=1e-5)
  for weight, replicated in zip(split.weights, mirrored.weights, strict=True):
    copies = strategy.experimental_local_results(replicated.value)
    # Each replica keeps moving statistics of its own; other weights agree.
    mean = np.mean([copy.numpy() for copy in copies], axis=0)
    atol = 1e-5 * max(np.abs(mean).max(), 1e-3)
    np.testing.assert_allclose(weight.numpy(), mean, rtol=0, atol=atol)
    own = [np.abs(copy.numpy() - mean).max() for copy in copies]
    assert ("moving" in weight.path) == (max(own) > 10 * atol)
