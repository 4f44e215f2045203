"""Placed models train as unplaced ones: models by plans, three steps each."""

import functools

import keras
import numpy as np
import pytest

import tfplace
from tests.testing import layer_cases
from tests.testing import placed_models as at
from tests.testing.slow import slow
from tfplace.core.recompute import is_clone
from tfplace.extraction import trace_keras
from tfplace.keras import state

STEPS = 3
# Between them: several inputs and outputs, dictionaries, shared and frozen
# layers, added losses, statistics, loops, masks, random layers, tables, an
# optimizer in a condition, a step of two optimizers.
MODELS = (
  "batch_norm",
  "ctc_loss",
  "loss_scaled",
  "masked_lstm",
  "nested_subclassed",
  "noises",
  "several_inputs_and_outputs",
  "siamese",
  "text_and_tables",
  "two_optimizers",
)


def _losses(model, batch):
  options = {"batch_size": 64, "epochs": STEPS, "verbose": 0, "shuffle": False}
  x, y, weight = (*batch, None, None)[:3]
  history = model.fit(x, y, sample_weight=weight, **options)
  return np.array(history.history["loss"])


@functools.cache
def _unplaced(kind):
  return _losses(*layer_cases.build(kind))


def _blocks(model, **options):
  """The first half of the layers on one device, the second on another."""
  names = [
    layer.name
    for layer in model.layers
    if not isinstance(layer, keras.layers.InputLayer)
  ]
  half = len(names) // 2
  plan = dict.fromkeys(names[:half], "CPU:1")
  plan.update(dict.fromkeys(names[half:], "CPU:2"))
  tfplace.place_model(model, placement=plan, **options)


def _ops(model, batch):
  """Each op anywhere."""
  placement = at.random_placement(trace_keras(model, sample=batch))
  tfplace.place_model(model, placement=placement)


def _searched(model):
  """Planned at the first fit."""
  tfplace.place_model(model, at.linked(), strategy="m_etf")


PLANS = {
  "ops": _ops,
  "searched": lambda model, _: _searched(model),
  "split": lambda model, _: _blocks(model, microbatches=2),
  "recomputed": lambda model, _: _blocks(model, recompute="all"),
}
# Plan -> models that it is given where slow tests do not run.
QUICK = {
  "ops": MODELS,
  "searched": (
    "loss_scaled",
    "nested_subclassed",
    "several_inputs_and_outputs",
    "text_and_tables",
    "two_optimizers",
  ),
  # Without statistics, random numbers, tables or steps of their own.
  "split": (
    "ctc_loss",
    "masked_lstm",
    "nested_subclassed",
    "several_inputs_and_outputs",
    "siamese",
  ),
  # Whose layers hold what can be computed again.
  "recomputed": ("batch_norm", "nested_subclassed", "siamese"),
}
TABLE = [(kind, plan) for plan, kinds in QUICK.items() for kind in kinds]
TABLE += [
  slow(kind, "searched")
  for kind in layer_cases.names()
  if kind not in QUICK["searched"]
]


@pytest.mark.parametrize(("kind", "plan"), TABLE)
def test_losses_equal_those_of_the_unplaced_model(kind, plan):
  expected = _unplaced(kind)
  model, batch = layer_cases.build(kind)
  PLANS[plan](model, batch)
  with at.recorded() as ran:
    got = _losses(model, batch)
  np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
  assert expected[-1] != expected[0]
  assert len({node.device for node in ran}) > 1
  assert any("microbatch_1/" in node.name for node in ran) == (plan == "split")
  assert any(is_clone(node.name) for node in ran) == (plan == "recomputed")
  placement = model.placement.placement
  if placement is None:  # of layers
    return
  same = at.planned_ops(ran, placement)
  # The others were fused, folded, or are in the branches of a condition.
  assert len(same) > 0.1 * placement.problem.graph.num_ops
  for node, planned in same:
    # A table stays where TensorFlow made it, and what is done to a metric,
    # whose ops `fit` may number otherwise, is where the metric is.
    beside = "Lookup" in node.type or "VariableOp" in node.type
    assert node.device == planned or beside, node
  for slot, owner in state.slots(model) if plan == "searched" else ():
    assert state.device_of(slot) == state.device_of(owner)
