import keras
import numpy as np

from tfplace import models


def _tiny(*, channels=3, skip_channels=5, **sizes):
  sizes.update(channels=channels, skip_channels=skip_channels)
  return models.build("wavenet", batch_size=1, samples=40, **sizes)


def _changed_outputs(zoo, at):
  """Time steps whose outputs change with the input sample `at`."""
  audio = zoo.sample(0)[0]
  other = audio.copy()
  other[0, at] = (other[0, at] + 100) % 256
  before, after = (zoo.model.predict_on_batch(x) for x in (audio, other))
  return np.flatnonzero((before != after).any(axis=-1)[0])


def test_outputs_depend_on_a_receptive_field_of_the_past_only():
  """Two stacks of dilations 1, 2, 4, and the first convolution, two taps
  each: 1 + 2 * (1 + 2 + 4) + 1 = 16 samples. (With few channels, random weights
  may leave no rectifier open that a change passes.)"""
  keras.utils.set_random_seed(0)
  zoo = _tiny(stacks=2, layers_per_stack=3, channels=32, skip_channels=64)
  np.testing.assert_array_equal(_changed_outputs(zoo, 10), range(10, 26))


def test_dilations_double_to_512_and_start_again():
  model = _tiny(stacks=2, layers_per_stack=12).model
  layers = [x for x in model.layers if x.name.startswith("stack")]
  one_stack = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1, 2]
  assert [layer.gated.dilation_rate[0] for layer in layers] == one_stack * 2
  assert layers[13].name == "stack_1_layer_1"
