"""Placed models train as unplaced ones: models by plans, three steps each."""

import functools

import keras
import numpy as np
import pytest

import tfplace
from tests.testing import layer_cases
from tests.testing import placed_models as at
from tests.testing.slow import slow, slow_but
from tfplace.graph import Placement
from tfplace.graph.microbatches import VariantConfig
from tfplace.graph.recompute import RecomputeConfig, is_clone
from tfplace.keras import state
from tfplace.variants.keras_step import trace_keras

STEPS = 3
# Steps that a plan is of; all ops are placed at random.
PLANS = {
  "whole": VariantConfig(),
  "split": VariantConfig(2),
  "ranked": VariantConfig(3, 2, devices=(2, 1)),
  "recomputed": VariantConfig(recompute=RecomputeConfig(everything=True)),
  "compiled": VariantConfig(),  # Units of ops that are placed at random.
}
# Plan -> models that it is given where slow tests do not run.
QUICK = {
  "whole": (
    "batch_norm",
    "ctc_loss",
    "loss_scaled",
    "noises",
    "text_and_tables",
    "two_optimizers",
  ),
  # Without statistics, random numbers, tables or steps of their own.
  "split": ("ctc_loss", "several_inputs_and_outputs"),
  "ranked": ("siamese",),
  # Their layers hold what can be computed again.
  "recomputed": ("batch_norm",),
  "compiled": ("noises",),
}
SLOWER = {
  "whole": layer_cases.CASES,
  "split": ("nested_subclassed", "siamese"),
  "ranked": (),
  "recomputed": (),
  "compiled": layer_cases.CASES,
}
TABLE = [
  case
  for plan, quick in QUICK.items()
  for case in (
    *((kind, plan) for kind in quick),
    *(slow(kind, plan) for kind in SLOWER[plan] if kind not in quick),
  )
]


def _losses(model, batch):
  options = {"batch_size": 64, "epochs": STEPS, "verbose": 0, "shuffle": False}
  history = model.fit(*batch, **options)
  return np.array(history.history["loss"])


@functools.cache
def _unplaced(kind):
  return _losses(*layer_cases.build(kind))


@pytest.mark.parametrize(("kind", "plan"), TABLE)
def test_losses_equal_those_of_the_unplaced_model(kind, plan):
  expected = _unplaced(kind)
  model, batch = layer_cases.build(kind)
  traced = trace_keras(model, sample=batch, microbatches=PLANS[plan])
  placement = at.random_placement(traced)
  if plan == "ranked":
    problem = placement.problem.in_order("rank")
    placement = Placement(problem, placement.devices)
  options = {"compile": "xla"} if plan == "compiled" else {}
  tfplace.place_model(model, placement=placement, **options)
  with at.recorded() as ran:
    found = _losses(model, batch)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
  assert expected[-1] != expected[0]
  is_microbatched = PLANS[plan].count > 1
  assert any("microbatch_1/" in node.name for node in ran) == is_microbatched
  assert any(is_clone(node.name) for node in ran) == (plan == "recomputed")
  if plan == "compiled":
    assert sum(node.type == "PartitionedCall" for node in ran) > 3
    return
  same = at.planned_ops(ran, placement)
  # The others were fused, folded, or are in the branches of a condition.
  assert len(same) > 0.1 * placement.problem.graph.num_ops
  for node, planned in same:
    # A table stays where TensorFlow made it, and what is done to a metric,
    # whose ops `fit` may number otherwise, is where the metric is.
    beside = "Lookup" in node.type or "VariableOp" in node.type
    assert node.device == planned or beside, node
  assert len({node.device for node, _ in same}) == 3


def _multiple():
  default = keras.optimizers.Adam(0.01)
  kinds = {".*kernel": keras.optimizers.SGD(0.01, momentum=0.9)}
  kinds = keras.optimizers.OptimizerMap(default, kinds)
  return keras.optimizers.MultiOptimizer(kinds)


def _each(kind, **options):
  return lambda: getattr(keras.optimizers, kind)(0.01, **options)


OPTIMIZERS = {
  kind: _each(kind)
  for kind in dir(keras.optimizers)
  if kind[0].isupper() and kind not in ("Optimizer", "OptimizerMap")
} | {
  "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(at.adam()),
  "MultiOptimizer": _multiple,
  "averaged": _each("Adam", use_ema=True, ema_overwrite_frequency=2),
  "accumulated": _each("SGD", momentum=0.9, gradient_accumulation_steps=2),
  "clipped": _each("AdamW", amsgrad=True, global_clipnorm=0.5),
}


@pytest.mark.parametrize(
  "kind", slow_but(("Muon", "MultiOptimizer"), OPTIMIZERS)
)
def test_slots_of_every_optimizer_lie_beside_their_variables(kind):
  def build():
    keras.utils.set_random_seed(7)
    model = at.dense("net")
    model.compile(OPTIMIZERS[kind](), "mse", jit_compile=False)
    # Else Keras builds it in the first step's trace, and ScheduleFreeAdamW
    # then starts anew in each step; a placed model's is built before.
    model.optimizer.build(model.trainable_variables)
    return model

  x, y = at.batch("dense")
  expected = [build().train_on_batch(x, y)]
  model = tfplace.place_model(build(), placement=at.SPLIT)
  found = [model.train_on_batch(x, y) for _ in range(STEPS)]
  np.testing.assert_allclose(found[0], expected[0], atol=1e-5)
  assert found[-1] != found[0] or kind == "accumulated"
  for slot, owner in state.slots(model):
    assert slot.value.device == owner.value.device
  # None is overlooked: what has the shape of a weight lies beside it.
  slots = {id(slot) for slot, _ in state.slots(model)}
  for optimizer in state.optimizers(model):
    for variable in optimizer.variables:
      assert id(variable) in slots or len(variable.shape) == 0, variable
