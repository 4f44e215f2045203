"""Inception-V3, the image model that every placement paper starts with."""

import keras

from tfplace.errors import ExtractionError
from tfplace.models.images import classifier
from tfplace.models.words import Sampler

SMALLEST_IMAGE = 75  # of keras.applications; the paper's are 299


def inception_v3(
  batch_size: int = 32, image_size: int = 299, classes: int = 1000
) -> tuple[keras.Model, Sampler]:
  """Inception-V3 of `keras.applications` without weights.

  Szegedy et al., "Rethinking the Inception Architecture" (2016), with its
  optimizer: RMSProp of decay 0.9, epsilon 1.0, learning rate 0.045. Batch 32
  is that of the placement papers (GO's table 1).

  Args:
    batch_size: images per step.
    image_size: height and width, pixels.
    classes: number of labels.

  Raises:
    ExtractionError: images too small for the network.
  """
  if image_size < SMALLEST_IMAGE:
    raise ExtractionError(
      f"model 'inception_v3': image_size must be at least {SMALLEST_IMAGE},"
      f" not {image_size}"
    )
  model = keras.applications.InceptionV3(
    weights=None, input_shape=(image_size, image_size, 3), classes=classes
  )
  optimizer = keras.optimizers.RMSprop(0.045, rho=0.9, epsilon=1.0)
  return classifier(model, optimizer, batch_size, image_size, classes)
