"""Placed models that recompute activations train as without it."""

import functools

import keras
import numpy as np
import pytest
from keras import layers

import tfplace
from tests.testing import placed_models as at
from tfplace.errors import InfeasibleError
from tfplace.graph.recompute import is_clone
from tfplace.variants.recompute import recompute as recomputing

RNG = np.random.default_rng(0)
X = RNG.random((16, 64)).astype("float32")
Y = RNG.random((16, 4)).astype("float32")


class OwnStep(keras.Model):
  def train_step(self, data):
    loss, gradients = tfplace.split_gradients(self, data)
    pairs = zip(gradients, self.trainable_weights, strict=True)
    self.optimizer.apply_gradients(pairs)
    return {"loss": loss}


def build(kind=keras.Model):
  keras.utils.clear_session()
  keras.utils.set_random_seed(1)
  x = start = keras.Input((64,), name="start")
  for i in range(3):
    x = layers.Dense(128, activation="tanh", name=f"dense_{i}")(x)
    x = layers.Dropout(0.1, name=f"drop_{i}")(x)
  model = kind(start, layers.Dense(4, name="last")(x), name="net")
  model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
  return model


def losses(model):
  history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
  return history.history["loss"]


@functools.cache
def unplaced():
  return losses(build())


def pair(memory_bytes=float("inf")):
  return at.linked(2, 1e4, memory_bytes)


def options(**more):
  found = dict(budget_s=1, costs="estimated", verbose=0, batch_size=8)
  return {**found, "strategy": "m_etf", **more}


def clones_of(plan):
  return [name for name in plan.assignments if is_clone(name)]


def test_fit_of_an_own_step_runs_the_planned_clones(monkeypatch):
  model = tfplace.place_model(
    build(OwnStep), pair(), **options(recompute=["dense_*"], order="rank")
  )
  there = set()
  original = recomputing.recompute

  def recorded(graph, flow, segments):
    count = original(graph, flow, segments)
    names = [op.name for op in graph.get_operations() if is_clone(op.name)]
    assert len(names) == count
    there.update(names)
    return count

  monkeypatch.setattr(recomputing, "recompute", recorded)
  np.testing.assert_allclose(losses(model), unplaced(), rtol=1e-6)
  assert there == set(clones_of(model.placement)) != set()


def test_a_saved_plan_recomputes_again(tmp_path):
  plan = tfplace.plan_model(
    build(), pair(), **options(recompute="all", microbatches=2, check=False)
  )
  plan.save(tmp_path / "p.json")
  model = tfplace.place_model(build(), placement=tmp_path / "p.json")
  losses(model)
  assert model.placement.variant.recompute.ops
  assert clones_of(model.placement) == clones_of(plan) != []


def test_auto_recomputes_only_where_memory_demands_it():
  model = build()
  large = {"strategy": "single", "batch_size": 4096}
  found = options(recompute="auto", **large)
  plan = tfplace.plan_model(model, pair(), **found)
  assert "recomputed" not in " ".join(plan.notes)
  assert not clones_of(plan)
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
  assert 0 < len(clones_of(saved)) <= len(clones_of(with_all))
  assert saved.evaluation.step_time_us <= with_all.evaluation.step_time_us
  with pytest.raises(InfeasibleError, match="if all layers are recomputed"):
    tfplace.plan_model(model, pair(least / 2), **found)


def test_xla_is_off_where_it_would_merge_the_clones():
  model = build()
  model.jit_compile = True
  model = tfplace.place_model(
    model, pair(), **options(strategy="single", recompute="all", compile="none")
  )
  np.testing.assert_allclose(losses(model), unplaced(), rtol=1e-6)
  assert not model.jit_compile
  assert "XLA would" in str(model.placement)
