"""NASNet-A and AmoebaNet-D are the published networks, cell by cell."""

import keras
import pytest

from tests.testing.slow import SLOW
from tfplace import models
from tfplace.errors import ExtractionError


@SLOW
def test_nasnet_has_the_weights_of_keras_own():
  """4 @ 1056, the mobile network, layer for layer the same sizes."""
  ours = models.build("nasnet", image_size=32).model
  theirs = keras.applications.NASNetMobile(weights=None)
  assert _kernels(ours) == _kernels(theirs)
  assert ours.count_params() == theirs.count_params()


def _kernels(model):
  return sorted(tuple(w.shape) for w in model.weights)


@SLOW
def test_amoebanet_d_has_the_convolutions_of_its_cells():
  """Counts by hand, from the published list of operations.

  Normal cell: 3 of 1x1, and 2 of 1x7-7x1 with 4 convolutions each: 11.
  Reduction cell: 3x3 with 3, 1x7-7x1 with 4, one 1x1: 8. Each cell also has
  one on its input, and from the third cell on the output of the cell before
  the last is fitted: by 2 halving convolutions after a reduction, by 1
  otherwise. Of the cells S S N R N R N (S as R, no fit in the first S; the
  stem's convolution has 32 filters and the first S needs one more to pool it,
  the second S halves it):
    S 9 + 1, S 9 + 2, N 12 + 2, R 9 + 1, N 12 + 2, R 9 + 1, N 12 + 2.
  With the stem: 1 + 10 + 11 + 14 + 10 + 14 + 10 + 14 = 84.
  """
  model = models.build("amoebanet_d", image_size=64, cells=3, filters=256).model
  convolutions = [
    layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)
  ]
  assert len(convolutions) == 84
  ends = [layer for layer in model.layers if layer.name.startswith("mixed")]
  # Filters are 64, 128, 256, 512, 512, 1024, 1024; a reduction cell puts out
  # three states, a normal one four.
  assert [end.output.shape[-1] for end in ends] == [
    3 * 64,
    3 * 128,
    4 * 256,
    3 * 512,
    4 * 512,
    3 * 1024,
    4 * 1024,
  ]
  # 64 pixels: 31 after the stem, then halved by each reduction, rounded up.
  assert [end.output.shape[1] for end in ends] == [16, 8, 8, 4, 4, 2, 2]


@pytest.mark.parametrize("name", ["nasnet", "amoebanet_d"])
def test_too_small_images_are_refused(name):
  with pytest.raises(ExtractionError, match=f"{name}.*at least 3, not 2"):
    models.build(name, image_size=2)
