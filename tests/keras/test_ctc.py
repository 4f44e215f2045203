"""A model with a CTC loss, whose loops Grappler cannot estimate, is placed."""

import keras
import numpy as np
import pytest

import tfplace

BATCH, FRAMES, SYMBOLS, LENGTH = 8, 12, 6, 4


class CtcLoss(keras.layers.Layer):
  """Adds the mean CTC loss of scores [batch, frames, symbols] for labels."""

  def call(self, labels, scores):
    count = keras.ops.shape(scores)[0]
    losses = keras.ops.ctc_loss(
      labels,
      scores,
      keras.ops.full((count,), labels.shape[1], "int32"),
      keras.ops.full((count,), scores.shape[1], "int32"),
    )
    self.add_loss(keras.ops.mean(losses))
    return scores


def _model():
  keras.utils.set_random_seed(1)
  layers = keras.layers
  sound = keras.Input((FRAMES, 8), name="sound")
  labels = keras.Input((LENGTH,), dtype="int32", name="labels")
  hidden = layers.Dense(16, activation="relu")(sound)
  scores = layers.Dense(SYMBOLS, name="scores")(hidden)
  model = keras.Model([sound, labels], CtcLoss(name="ctc")(labels, scores))
  model.compile("adam", jit_compile=False)
  return model


def _losses(model):
  rng = np.random.default_rng(0)
  sound = rng.random((BATCH, FRAMES, 8), np.float32)
  labels = rng.integers(1, SYMBOLS, (BATCH, LENGTH), np.int32)
  fitted = model.fit([sound, labels], epochs=4, batch_size=BATCH, verbose=0)
  return fitted.history["loss"]


@pytest.fixture(scope="module")
def unplaced():
  return _losses(_model())


@pytest.mark.parametrize(
  "options",
  [{"costs": "estimated"}, {"costs": "measured"}, {"microbatches": 2}],
)
def test_placed_model_with_a_ctc_loss_trains_as_unplaced(options, unplaced):
  model = tfplace.place_model(
    _model(), strategy="m_topo", batch_size=BATCH, budget_s=0.2, **options
  )
  found = _losses(model)
  assert len(model.placement.devices) > 1
  np.testing.assert_allclose(found, unplaced, rtol=1e-5)


def test_loops_of_a_ctc_loss_have_costs():
  plan = tfplace.plan_model(
    _model(),
    "v100x2",
    strategy="m_topo",
    batch_size=BATCH,
    budget_s=0.2,
    microbatches=2,
  )
  graph = plan.placement.problem.graph
  times = dict(zip(graph.names, graph.time_us["CPU"], strict=True))
  loops = [
    times[name]
    for name, kind in zip(graph.names, graph.types, strict=True)
    if "While" in kind and "ctc" in name
  ]
  assert loops
  assert min(loops) > 0
  assert "rejected_by_grappler" not in graph.extra
