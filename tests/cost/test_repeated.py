"""Equal microbatches are estimated once, and cost what each would alone."""

import keras
import numpy as np
import pytest
from keras import layers

import tfplace
from tfplace.cost import op_classes, op_graph
from tfplace.graph.microbatches import VariantConfig
from tfplace.variants.keras_step import trace_keras

CLUSTER = tfplace.cluster_preset("v100x2")


def sequence():
  tokens = keras.Input((7,), dtype="int32")
  x = layers.Embedding(30, 8, mask_zero=True)(tokens)
  x = layers.SimpleRNN(6, return_sequences=True, dropout=0.2)(x)
  x = x + layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
  return keras.Model(tokens, layers.Dense(5)(x))


def image():
  return keras.Sequential(
    [
      keras.Input((12, 12, 3)),
      layers.Conv2D(4, 3, padding="same"),
      layers.GroupNormalization(2),
      layers.MaxPooling2D(),
      layers.Flatten(),
      layers.Dense(5),
    ]
  )


# 8 examples: four parts of 2; three parts, of 3, 3 and 2 examples.
@pytest.mark.parametrize(("build", "microbatches"), [(sequence, 3), (image, 4)])
def test_each_microbatch_costs_what_it_costs_alone(
  build, microbatches, monkeypatch
):
  model = build()
  model.compile("adam", "mse", jit_compile=False)
  traced = trace_keras(model, 8, microbatches=VariantConfig(microbatches))
  find, found = op_classes.repeated_ops, {}

  def recorded(*args):
    found.update(find(*args))
    return found

  monkeypatch.setattr(op_classes, "repeated_ops", recorded)
  once = op_graph(traced, CLUSTER)
  monkeypatch.setattr(op_classes, "repeated_ops", lambda *args: {})
  each = op_graph(traced, CLUSTER)
  for kind, time_us in each.time_us.items():
    np.testing.assert_array_equal(once.time_us[kind], time_us)
  np.testing.assert_array_equal(once.temp_bytes, each.temp_bytes)
  assert once.extra == each.extra
  # But for the cutting of the batch, the second is the first once more.
  second = sum(name.startswith("microbatch_1/") for name in found)
  assert second > 0.9 * np.sum(once.microbatch == 1)
  third = {name for name in found if name.startswith("microbatch_2/")}
  # One of another size has other shapes, and little else in common.
  share = len(third) / np.sum(once.microbatch == 2)
  assert share > 0.9 if microbatches == 4 else share < 0.6
