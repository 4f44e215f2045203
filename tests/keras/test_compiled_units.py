"""Placed steps whose units XLA compiles."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfplace
from tests.testing import placed_models as at
from tests.testing.slow import slow
from tfplace import formats
from tfplace.errors import TfplaceError

UNITS = {"compile": "xla", "strategy": "metis", "costs": "estimated"}


def build(kind):
  """A model whose own step Keras compiles.

  Adam would turn the rounding of gradients that are 0, such as that of a bias
  before BatchNormalization, into steps of full length.
  """
  model = at.build(kind, compiled=False)
  model.compile(at.sgd(), "mse", metrics=["mae"], jit_compile=True)
  return model


def losses(model, kind, batch_size=5):
  x, y = at.batch(kind)
  # The last batch of 5 is smaller, and its step is compiled anew.
  options = {"batch_size": batch_size, "verbose": 0}
  history = model.fit(x, y, epochs=2, shuffle=False, **options).history
  found = [*history["loss"], *model.evaluate(x, y, **options)]
  return np.array(found), model.predict(x, verbose=0)


def calls(ran):
  """Compiled calls by device among recorded nodes."""
  found = [node for node in ran if node.type.endswith("PartitionedCall")]
  return {node.device for node in found}, len(found)


@pytest.mark.parametrize(
  ("kind", "options"),
  [
    ("dropout", {}),
    ("dense", {"microbatches": 2, "order": "rank", "batch_size": 4}),
    slow("conv_norm", {"recompute": "all"}),
    slow("two_inputs", {"microbatches": 2, "max_in_flight": 1}),
    slow("lstm", {}),
    slow("subclassed", {"recompute": "all", "order": "rank"}),
  ],
)
def test_steps_in_units_equal_the_step_that_keras_compiles(
  kind, options, tmp_path
):
  options = {**UNITS, "batch_size": 5, **options}
  expected, outputs = losses(build(kind), kind, options["batch_size"])
  model = build(kind)
  sample = [array[: options["batch_size"]] for array in at.batch(kind)]
  if kind == "subclassed":  # Its inputs are known from data only.
    options = {**options, "sample": tuple(sample)}
  plan = tfplace.plan_model(model, at.linked(2), **options)
  members = plan.placement.problem.graph.members
  assert members and not set(members) & set(plan.assignments)
  plan.placement.save(tmp_path / "p.json")
  assert tfplace.Plan.load(tmp_path / "p.json").ops == plan.ops
  plan.save(tmp_path / "p.json")
  # Other systems find the units of the graph in the file.
  problem = plan.placement.problem
  read = tfplace.load_placement(tmp_path / "p.json", problem)
  assert read.assignments == plan.placement.assignments
  names = formats.load_assignments(tmp_path / "p.json")
  assert set(members) <= set(names)
  assert tfplace.Plan.load(tmp_path / "p.json") == plan
  tfplace.place_model(model, placement=tmp_path / "p.json")
  with at.recorded(1) as ran:
    found, placed_outputs = losses(model, kind, options["batch_size"])
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_allclose(placed_outputs, outputs, rtol=1e-4, atol=1e-5)
  devices, count = calls(ran)
  assert len(devices) == 2 and count >= 4
  assert not model.jit_compile
  assert not any("jit_compile" in note for note in model.placement.notes)


def test_auto_does_what_keras_does():
  for jit_compile in (True, False):
    model = at.build("dense", compiled=False)
    model.compile(at.sgd(), "mse", jit_compile=jit_compile)
    plan = tfplace.plan_model(model, at.linked(2), strategy="metis")
    assert bool(plan.placement.problem.graph.members) == jit_compile
  # On a GPU host, Keras compiles by default.
  plan = tfplace.plan_model(model, "v100x2", strategy="metis")
  assert plan.placement.problem.graph.members
  plan = tfplace.plan_model(model, "v100x2", strategy="metis", compile="none")
  assert not plan.placement.problem.graph.members
  with pytest.raises(
    TfplaceError, match="compile is 'yes'; choose one of auto"
  ):
    tfplace.plan_model(model, compile="yes")


def test_what_xla_lacks_stays_outside():
  words = keras.layers.StringLookup(vocabulary=["a", "b"])
  model = keras.Sequential(
    [
      keras.Input((3,), dtype="string"),
      words,
      keras.layers.Embedding(3, 4),
      keras.layers.Flatten(),
      keras.layers.Dense(3),
    ]
  )
  model.compile("sgd", "mse")
  x, y = np.array([["a", "b", "c"]] * 4), np.ones((4, 3), "float32")
  expected = model.get_weights()
  tfplace.place_model(model, at.linked(2), batch_size=4, **UNITS)
  assert model.placement.units
  notes = " ".join(model.placement.notes)
  assert "XLA does not compile" in notes and "of layer 'string_lookup" in notes
  found = model.fit(tf.constant(x), y, verbose=0).history["loss"]
  assert np.isfinite(found).all()
  assert any(
    (a != b).any() for a, b in zip(model.get_weights(), expected, strict=True)
  )
