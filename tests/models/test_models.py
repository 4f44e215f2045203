import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.testing.slow import SLOW
from tfplace import models
from tfplace.errors import ExtractionError

WORDS = {"batch_size": 4, "units": 16, "vocabulary": 50, "length": 4}
SEGMENTS = {"layers": 1, "heads": 2, "feed_forward": 24, "segments": 2}
STACKS = {"stacks": 1, "layers_per_stack": 3, "channels": 4, "skip_channels": 8}
TINY = {
  "nmt": WORDS,
  "rnnlm": WORDS,
  "transformer_xl": {**WORDS, **SEGMENTS, "batch_size": 2, "memory": 3},
  "wavenet": {**STACKS, "batch_size": 2, "samples": 20},
}


@pytest.fixture(scope="module", params=TINY)
def tiny(request):
  return models.build(request.param, **TINY[request.param])


def test_twenty_steps_bring_the_loss_of_one_batch_down(tiny):
  x, y = tiny.sample(0)
  losses = [float(tiny.model.train_on_batch(x, y)) for _ in range(20)]
  assert np.isfinite(losses).all()
  assert losses[-1] < losses[0]


def test_sample_has_the_batch_size_and_depends_on_the_seed_only(tiny):
  first, again, other = (tf.nest.flatten(tiny.sample(s)) for s in (3, 3, 4))
  for a, b in zip(first, again, strict=True):
    np.testing.assert_array_equal(a, b)
  assert any((a != b).any() for a, b in zip(first, other, strict=True))
  assert {len(a) for a in first} == {tiny.batch_size}


@pytest.mark.parametrize("name", ["rnnlm", "transformer_xl", "wavenet"])
def test_sequence_models_come_back_from_a_file(name, tmp_path):
  zoo = models.build(name, **TINY[name])
  zoo.model.save(tmp_path / "model.keras")
  again = keras.saving.load_model(tmp_path / "model.keras")
  x, _ = zoo.sample(0)
  np.testing.assert_allclose(
    zoo.model.predict_on_batch(x), again.predict_on_batch(x), rtol=1e-6
  )


@pytest.mark.parametrize("name", ["rnnlm_2", "transformer_xl_2"])
def test_variants_are_families_of_other_sizes(name):
  family, sizes = models.VARIANTS[name]
  assert family in TINY
  small = {k: v for k, v in TINY[family].items() if k not in sizes}
  zoo = models.build(name, **small)
  assert zoo.name == name
  assert dict(zoo.sizes) | sizes == dict(zoo.sizes)


def test_unknown_model_lists_the_choices():
  with pytest.raises(ExtractionError, match=r"'vgg'.*inception_v3, nmt"):
    models.build("vgg")


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    ({"depth": 3}, r"no size 'depth': choose from batch_size, layers, units"),
    ({"units": 0}, r"units must be a positive integer, not 0"),
    ({"units": 1.5}, r"units must be a positive integer, not 1\.5"),
    ({"batch_size": -1}, r"batch_size must be a positive integer, not -1"),
  ],
)
def test_wrong_sizes_are_named(sizes, message):
  with pytest.raises(ExtractionError, match=message):
    models.build("nmt", **sizes)


@pytest.mark.parametrize(
  ("name", "least"), [("inception_v3", 75), ("nasnet", 3), ("amoebanet_d", 3)]
)
def test_too_small_images_are_refused(name, least):
  with pytest.raises(ExtractionError, match=f"at least {least}"):
    models.build(name, image_size=least - 1)


@SLOW
def test_nasnet_has_the_weights_of_keras_own():
  """4 @ 1056, the mobile network, layer for layer the same sizes."""
  ours = models.build("nasnet", image_size=32).model
  theirs = keras.applications.NASNetMobile(weights=None)
  shapes, expected = (
    sorted(tuple(w.shape) for w in model.weights) for model in (ours, theirs)
  )
  assert shapes == expected
