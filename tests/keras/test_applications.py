"""The models of `keras.applications`, small inputs, planned op by op at random.

In double precision, and with images not so small that a batch normalisation
sees one pixel of each: it would amplify the rounding of one fused kernel until
nothing could be told apart.
"""

import keras
import numpy as np
import pytest

import tfplace
from tests.testing import placed_models as at
from tests.testing.slow import SLOW
from tfplace.extraction import keras_step, trace_keras

STEPS = 3
_SIDES = {
  "EfficientNetV2B0": 64,
  "InceptionV3": 75,
  "ResNet101": 64,
  "ResNet50": 64,
  "ResNet50V2": 64,
  "InceptionResNetV2": 75,
  "Xception": 71,
}
NAMES = (
  "ConvNeXtTiny",
  "DenseNet121",
  "EfficientNetB0",
  "EfficientNetV2B0",
  "InceptionResNetV2",
  "InceptionV3",
  "MobileNet",
  "MobileNetV2",
  "MobileNetV3Large",
  "MobileNetV3Small",
  "NASNetMobile",
  "ResNet101",
  "ResNet50",
  "ResNet50V2",
  "VGG16",
  "VGG19",
  "Xception",
)


@pytest.fixture(autouse=True)
def double_precision():
  before = keras.config.floatx(), keras.config.dtype_policy()
  keras.config.set_floatx("float64")
  keras.config.set_dtype_policy("float64")
  yield
  keras.config.set_floatx(before[0])
  keras.config.set_dtype_policy(before[1])


def _built(name):
  keras.utils.set_random_seed(11)
  side = _SIDES.get(name, 32)
  options = {"alpha": 0.25} if name == "MobileNet" else {}
  with keras_step.fresh_names():
    model = getattr(keras.applications, name)(
      weights=None, input_shape=(side, side, 3), classes=7, **options
    )
  optimizer = keras.optimizers.SGD(1e-4, momentum=0.9, global_clipnorm=1.0)
  loss = "sparse_categorical_crossentropy"
  model.compile(optimizer, loss, jit_compile=False)
  rng = np.random.default_rng(0)
  return model, (rng.random((4, side, side, 3)), rng.integers(0, 7, 4))


def _losses(model, batch, steps):
  return [float(model.train_on_batch(*batch)) for _ in range(steps)]


@SLOW
@pytest.mark.parametrize("name", NAMES)
def test_losses_equal_those_of_the_unplaced_model(name):
  expected = _losses(*_built(name), STEPS)
  model, batch = _built(name)
  placement = at.random_placement(trace_keras(model, sample=batch))
  tfplace.place_model(model, placement=placement)
  with at.recorded() as ran:
    got = _losses(model, batch, 1)
  got += _losses(model, batch, STEPS - 1)
  np.testing.assert_allclose(got, expected, rtol=1e-5)
  assert expected[-1] != expected[0]
  same = at.planned_ops(ran, placement)
  assert len(same) > 0.4 * placement.problem.graph.num_ops
  for node, planned in same:
    assert node.device == planned, node
