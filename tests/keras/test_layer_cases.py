"""Keras layers, planned at the first fit: losses equal the unplaced ones."""

import numpy as np
import pytest

import tfplace
from tests.testing import layer_cases
from tests.testing import placed_models as at
from tfplace.keras import state

STEPS = 20
# Between them: several inputs and outputs, dictionaries, shared and frozen
# layers, added losses, tables, random layers, own steps, two optimizers.
_FAST = (
  "several_inputs_and_outputs",
  "sequential_without_input",
  "nested_subclassed",
  "siamese",
  "loss_scaled",
  "text_and_tables",
  "noises",
  "own_train_step",
  "two_optimizers",
)


def _cluster():
  names = [f"{at.LOCAL}CPU:{i}" for i in range(3)]
  devices = tuple(tfplace.Device(name, "CPU") for name in names)
  links = [tfplace.Link(a, b, 1e6) for a in names for b in names if a != b]
  return tfplace.Cluster("fast", devices, tuple(links))


def _losses(model, batch):
  """Loss of each of `STEPS` steps on the one batch."""
  options = {"batch_size": 64, "epochs": STEPS, "verbose": 0, "shuffle": False}
  x, y, weight = (*batch, None, None)[:3]
  history = model.fit(x, y, sample_weight=weight, **options)
  return np.array(history.history["loss"])


@pytest.mark.parametrize(
  "kind", [k if k in _FAST else at.slow(k) for k in layer_cases.names()]
)
def test_a_planned_model_trains_as_the_unplaced_one(kind):
  expected = _losses(*layer_cases.build(kind))
  model, batch = layer_cases.build(kind)
  tfplace.place_model(model, _cluster(), strategy="m_etf")
  with at.recorded() as ran:
    got = _losses(model, batch)
  np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
  assert expected[-1] != expected[0]
  assert len({node.device for node in ran}) > 1
  placement = model.placement.placement
  same = at.planned_ops(ran, placement)
  # The others were fused, folded, or are in the branches of a condition.
  assert len(same) > 0.15 * placement.problem.graph.num_ops
  for node, planned in same:
    # A table stays where TensorFlow made it, and what is done to a metric,
    # whose ops `fit` may number otherwise, is where the metric is.
    beside = "Lookup" in node.type or "VariableOp" in node.type
    assert node.device == planned or beside, node
  for slot, owner in state.slots(model):
    assert state.device_of(slot) == state.device_of(owner)
