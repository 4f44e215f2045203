"""BatchNormalization by TensorFlow's fused op in placed steps without XLA."""

import contextlib
import functools
import re
from unittest import mock

import keras
import numpy as np
import pytest
from keras import layers

import tfplace
from tests.testing import placed_models as at
from tests.testing.clusters import linked
from tfplace.graph import Device
from tfplace.graph.quantities import format_us
from tfplace.variants import fused_norm

# Only steps on GPUs are fused; these are CPUs that are said to be some.
GPUS = linked([Device(f"{at.LOCAL}CPU:{i}", "GPU") for i in range(2)])
OPTIONS = {"strategy": "metis", "costs": "estimated", "batch_size": 8}
OPTIONS["compile"] = "none"
FUSED = {"plain", "bare"}


class Own(layers.BatchNormalization):
  """A layer of the user's, which may compute anything."""


def build(dtype="float32"):
  """Two layers that are fused, and three that are not."""
  keras.utils.set_random_seed(7)
  bare = {"scale": False, "center": False, "epsilon": 1.001e-5}
  model = keras.Sequential(
    [
      keras.Input((8, 8, 3)),
      layers.Conv2D(4, 3, use_bias=False, dtype=dtype),
      layers.BatchNormalization(momentum=0.7, dtype=dtype, name="plain"),
      layers.ReLU(),
      layers.Conv2D(4, 3, use_bias=False, dtype=dtype),
      layers.BatchNormalization(axis=3, dtype=dtype, name="bare", **bare),
      layers.Conv2D(4, 3, use_bias=False, dtype=dtype),
      Own(name="own"),
      layers.BatchNormalization(axis=1, name="rows"),
      layers.Flatten(),
      layers.BatchNormalization(name="flat"),
      layers.Dense(3),
    ]
  )
  model.compile(at.sgd(), "mse", jit_compile=False)
  return model


def fit(model):
  """Losses of three steps and an evaluation; all weights at their end."""
  x, y = at.batch("conv_norm")
  losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
  losses.append(float(model.test_on_batch(x, y)))
  return np.array(losses), model.get_weights()


@functools.cache
def unplaced(dtype):
  return fit(build(dtype))


def assert_same(found, expected, share=1e-5):
  np.testing.assert_allclose(found[0], expected[0], rtol=share)
  for mine, theirs in zip(found[1], expected[1], strict=True):
    # The mean of normalized rows is 0 but for rounding.
    atol = share * max(np.abs(theirs).max(), 0.01)
    np.testing.assert_allclose(mine, theirs, rtol=share, atol=atol)


def fused_layers(ran):
  """Layers whose gradients the fused op computed."""
  names = [n.name for n in ran if "FusedBatchNormGrad" in n.type]
  return {
    re.findall(r"(\w+?)(?:_\d+)?/tfplace_fused_norm/", n)[-1] for n in names
  }


@pytest.mark.parametrize(
  ("options", "dtype", "share"),
  [
    ({}, "float32", 1e-5),
    ({"recompute": "all", "order": "rank"}, "float32", 1e-5),
    ({}, "mixed_bfloat16", 2e-2),
  ],
)
def test_fused_layers_compute_what_keras_computes(
  options, dtype, share, tmp_path
):
  model = build(dtype)
  plan = tfplace.plan_model(model, GPUS, **{**OPTIONS, **options})
  plan.save(tmp_path / "p.json")
  tfplace.place_model(model, placement=tmp_path / "p.json")
  with at.recorded() as ran:
    found = fit(model)
  assert fused_layers(ran) == FUSED
  assert_same(found, unplaced(dtype), share)


def test_microbatches_of_fused_layers_have_statistics_of_their_own():
  options = {**OPTIONS, "microbatches": 2, "allow_batch_statistics": True}
  ways = (contextlib.nullcontext(), mock.patch.object(fused_norm, "_TYPES", ()))
  results = []
  for way in ways:
    model = build()
    with way, at.recorded() as ran:
      tfplace.place_model(model, GPUS, **options)
      losses = fit(model)
    results.append((losses, fused_layers(ran)))
  (found, layers_found), (expected, none) = results
  assert (layers_found, none) == (FUSED, set())
  assert_same(found, expected)


def test_steps_with_xla_or_on_cpus_keep_the_ops_of_keras():
  model = build()
  for cluster, compiles in ((GPUS, "xla"), (at.linked(2), "none")):
    options = {**OPTIONS, "compile": compiles}
    plan = tfplace.plan_model(model, cluster, **options)
    assert not fused_norm.is_named(plan.ops)
  plan = tfplace.plan_model(model, GPUS, **OPTIONS)
  assert fused_norm.is_named(plan.ops)
  graph = tfplace.extract(model, GPUS, batch_size=8, compile="none")
  single = tfplace.place(tfplace.Problem(graph, GPUS), "single")
  time = format_us(single.evaluation.step_time_us)
  assert (
    f"With Keras' own normalization, one device takes {time}." in plan.notes
  )
  assert all("call" not in vars(layer) for layer in model.layers)
