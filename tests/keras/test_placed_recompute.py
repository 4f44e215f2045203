"""Placed models that recompute activations train as without it."""

import keras
import numpy as np
import pytest
from keras import layers

import tfplace
from tests.testing import placed_models as at
from tests.testing.slow import slow
from tfplace.core.recompute import is_clone
from tfplace.errors import ApplyError, ExtractionError, InfeasibleError
from tfplace.extraction.activations import rewrite

RNG = np.random.default_rng(0)
X = RNG.random((80, 64)).astype("float32")
Y = RNG.random((80, 4)).astype("float32")
CPUS = [f"{at.LOCAL}CPU:{i}" for i in range(2)]


def build(seed=1):
  keras.utils.clear_session()
  keras.utils.set_random_seed(seed)
  x = start = keras.Input((64,), name="start")
  for i in range(6):
    x = layers.Dense(128, activation="tanh", name=f"dense_{i}")(x)
    x = layers.Dropout(0.1, name=f"drop_{i}")(x)
  model = keras.Model(start, layers.Dense(4, name="last")(x), name="net")
  model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
  return model


def fitted(model):
  history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
  return history.history, [w.numpy() for w in model.trainable_weights]


def pair(memory_bytes=float("inf")):
  return at.linked(2, 1e4, memory_bytes)


def options(**more):
  found = dict(budget_s=1, costs="estimated", verbose=0, batch_size=8)
  return {**found, "strategy": "m_etf", **more}


def clones_that_run(model):
  assignments = model.placement.assignments
  return [name for name in assignments if is_clone(name)]


@pytest.mark.parametrize(
  "recompute", [["dense_*"], slow([["dense_1", "drop_1"]])]
)
def test_fit_equals_the_unplaced_model(recompute):
  expected = fitted(build())
  model = tfplace.place_model(build(), pair(), **options(recompute=recompute))
  found = fitted(model)
  assert clones_that_run(model)
  for name, values in expected[0].items():
    np.testing.assert_allclose(found[0][name], values, rtol=1e-6)
  for a, b in zip(found[1], expected[1], strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_fit_runs_the_clones_that_were_planned(monkeypatch):
  model = tfplace.place_model(build(), pair(), **options(recompute="all"))
  there = set()
  original = rewrite.recompute

  def recorded(graph, flow, segments):
    count = original(graph, flow, segments)
    names = [op.name for op in graph.get_operations() if is_clone(op.name)]
    assert len(names) == count
    there.update(names)
    return count

  monkeypatch.setattr(rewrite, "recompute", recorded)
  fitted(model)
  assert there == set(clones_that_run(model))


def test_a_saved_plan_recomputes_again(tmp_path):
  plan = tfplace.plan_model(
    build(), pair(), **options(recompute="all", microbatches=2)
  )
  plan.save(tmp_path / "p.json")
  expected = [name for name in plan.assignments if is_clone(name)]
  assert expected
  model = tfplace.place_model(build(), placement=tmp_path / "p.json")
  fitted(model)
  assert model.placement.microbatch_config.recompute.ops
  assert clones_that_run(model) == expected


def test_auto_recomputes_only_where_memory_demands_it():
  model = build()
  large = {"strategy": "single", "batch_size": 4096}
  found = options(recompute="auto", **large)
  plan = tfplace.plan_model(model, pair(), **found)
  assert "recomputed" not in " ".join(plan.notes)
  assert not any(is_clone(name) for name in plan.assignments)
  with_all = tfplace.plan_model(
    model, pair(), **options(recompute="all", **large)
  )
  least, most = (
    max(p.evaluation.peak_memory_bytes.values()) for p in (with_all, plan)
  )
  assert least < most
  small = pair((least + most) / 2)
  with pytest.raises(InfeasibleError):
    tfplace.plan_model(model, small, **options(**large))
  saved = tfplace.plan_model(model, small, **found)
  assert "recomputed, since whole it does not fit" in str(saved)
  some, every = (
    [name for name in p.assignments if is_clone(name)]
    for p in (saved, with_all)
  )
  assert 0 < len(some) <= len(every)
  assert saved.evaluation.step_time_us <= with_all.evaluation.step_time_us
  with pytest.raises(InfeasibleError, match="if all layers are recomputed"):
    tfplace.plan_model(model, pair(least / 2), **found)


def test_auto_has_no_effect_on_a_given_placement():
  with pytest.raises(ApplyError, match="recompute='auto'"):
    tfplace.place_model(
      build(), placement={"dense_0": "CPU:1"}, recompute="auto"
    )


def test_xla_is_off_where_it_would_merge_the_clones():
  expected = fitted(build())
  model = build()
  model.jit_compile = True
  model = tfplace.place_model(
    model, pair(), **options(strategy="single", recompute="all")
  )
  found = fitted(model)
  assert not model.jit_compile
  assert "XLA would" in str(model.placement)
  np.testing.assert_allclose(found[0]["loss"], expected[0]["loss"], rtol=1e-6)


class OwnStep(keras.Model):
  def train_step(self, data):
    loss, gradients = tfplace.split_gradients(self, data)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    return {"loss": loss}


@pytest.mark.parametrize("order", [slow("arrival"), "rank"])
def test_own_step_recomputes_in_both_orders(order):
  def own():
    model = build()
    found = OwnStep(model.inputs, model.outputs)
    found.compile(keras.optimizers.SGD(0.1), "mse")
    return found

  expected = fitted(own())
  model = tfplace.place_model(
    own(), pair(), **options(recompute="all", order=order)
  )
  found = fitted(model)
  assert clones_that_run(model)
  np.testing.assert_allclose(found[0]["loss"], expected[0]["loss"], rtol=1e-6)


def test_inference_does_not_recompute():
  model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
  with pytest.raises(ExtractionError, match="only a training step recomputes"):
    tfplace.plan_model(model, pair(), **options(recompute="all"))
