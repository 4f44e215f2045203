"""Placed models whose activations wait on another device train as before."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers

import tfplace
from tests.testing import placed_models as at
from tfplace.core.offload import is_offload
from tfplace.errors import ApplyError, InfeasibleError
from tfplace.extraction.activations import rewrite

RNG = np.random.default_rng(0)
X = RNG.random((48, 64)).astype("float32")
Y = RNG.random((48, 4)).astype("float32")
CPUS = [f"{at.LOCAL}CPU:{i}" for i in range(2)]


def build(dropout=0.1):
  keras.utils.clear_session()
  keras.utils.set_random_seed(1)
  x = start = keras.Input((64,), name="start")
  for i in range(5):
    x = layers.Dense(128, activation="tanh", name=f"dense_{i}")(x)
    x = layers.Dropout(dropout, name=f"drop_{i}")(x)
  model = keras.Model(start, layers.Dense(4, name="last")(x), name="net")
  model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
  return model


def fitted(model):
  history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
  return history.history, [w.numpy() for w in model.trainable_weights]


def pair():
  return tfplace.Cluster(
    "pair",
    tuple(tfplace.Device(name, "CPU") for name in CPUS),
    tuple(tfplace.Link(a, b, 1e4) for a in CPUS for b in CPUS if a != b),
  )


def described_gpu(memory_bytes):
  """CPU:0 with the costs and links of a GPU, and CPU:1 as its host."""
  preset = tfplace.cluster_preset("v100x1")
  names = dict(zip([d.name for d in preset.devices], CPUS, strict=True))
  gpu, cpu = (
    dataclasses.replace(d, name=names[d.name]) for d in preset.devices
  )
  links = tuple(
    dataclasses.replace(link, src=names[link.src], dst=names[link.dst])
    for link in preset.links
  )
  gpu = dataclasses.replace(gpu, memory_bytes=memory_bytes)
  return dataclasses.replace(preset, devices=(gpu, cpu), links=links)


def options(**more):
  found = dict(budget_s=1, costs="estimated", verbose=0, batch_size=8)
  return {**found, "strategy": "single", **more}


@pytest.mark.parametrize("microbatches", [1, 2])
def test_fit_equals_the_unplaced_model(microbatches, monkeypatch):
  dropout = 0.1 if microbatches == 1 else 0.0  # Drawn per microbatch.
  expected = fitted(build(dropout))
  plan = tfplace.plan_model(
    build(dropout), pair(), **options(offload="all", microbatches=microbatches)
  )
  devices = {
    name: CPUS[1] if is_offload(name) else device
    for name, device in plan.assignments.items()
  }
  there = {}
  original = rewrite.offload

  def recorded(graph, config):
    count = original(graph, config)
    ops = [op for op in graph.get_operations() if is_offload(op.name)]
    assert len(ops) == count > 0
    there.update({op.name: op.device for op in ops})
    return count

  monkeypatch.setattr(rewrite, "offload", recorded)
  model = tfplace.place_model(build(dropout), placement=devices)
  found = fitted(model)
  assert there and (microbatches > 1 or set(there.values()) == {CPUS[1]})
  for name, values in expected[0].items():
    np.testing.assert_allclose(found[0][name], values, rtol=1e-6)
  for a, b in zip(found[1], expected[1], strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_auto_holds_activations_elsewhere_only_where_memory_is_short():
  x = start = keras.Input((1024,))
  for _ in range(10):
    x = layers.Dense(1024, activation="tanh")(x)
  model = keras.Model(start, x)
  model.compile("sgd", "mse")
  large = {"batch_size": 8192, "offload": "auto", "strategy": "auto"}
  plan = tfplace.plan_model(model, "v100x1", **options(**large))
  assert "wait in host memory" not in str(plan)
  assert not any(map(is_offload, plan.assignments))
  gpu, peak = max(
    plan.evaluation.peak_memory_bytes.items(), key=lambda item: item[1]
  )
  short = {gpu: 0.9 * peak, "CPU:0": 0.5 * peak}
  saved = tfplace.plan_model(
    model, "v100x1", max_memory=short, **options(**large)
  )
  assert "activations that may wait" in str(saved)
  assert " in host memory (" in str(saved)
  assert any(map(is_offload, saved.assignments))
  less = dict.fromkeys(short, 0.2 * peak)
  with pytest.raises(InfeasibleError, match="if activations wait in host"):
    tfplace.plan_model(model, "v100x1", max_memory=less, **options(**large))


@pytest.mark.parametrize("strategy", ["single", "auto"])
def test_a_plan_that_offloads_is_applied_though_one_device_computes(strategy):
  """`single` offloads in `auto`, too, so no placement may beat it."""
  rng = np.random.default_rng(0)
  x, y = (rng.random((2048, n), np.float32) for n in (64, 4))

  def fit(model):
    return model.fit(x, y, batch_size=1024, verbose=0).history["loss"]

  expected = fit(build())
  found = options(batch_size=1024, offload="all", strategy=strategy)
  free = tfplace.plan_model(build(), described_gpu(1e12), **found)
  peak = free.evaluation.peak_memory_bytes[CPUS[0]]
  model = tfplace.place_model(build(), described_gpu(0.97 * peak), **found)
  np.testing.assert_allclose(fit(model), expected, rtol=1e-6)
  plan = model.placement
  assert any(CPUS[1] in device for device in plan.devices)
  assert plan.device_map is not None
  if strategy == "single":
    assert "wait in host memory" in str(plan)


def test_a_given_placement_leaves_nothing_to_choose():
  with pytest.raises(ApplyError, match="offload='auto'"):
    tfplace.place_model(build(), placement={"dense_0": "CPU:1"}, offload="auto")


def test_a_known_step_leaves_nothing_to_choose():
  plan = tfplace.plan_model(build(), pair(), **options())
  with pytest.raises(ApplyError, match="instead of recompute='auto' and off"):
    tfplace.plan_model(
      build(),
      pair(),
      init_placement=plan,
      **options(recompute="auto", offload="auto", strategy="auto"),
    )
