"""What the image models of the zoo share: how they are compiled and fed."""

import keras
import numpy as np

from tfplace.models.words import Sampler


def classifier(
  model: keras.Model,
  optimizer: keras.optimizers.Optimizer,
  batch_size: int,
  image_size: int,
  classes: int,
) -> tuple[keras.Model, Sampler]:
  """Compiles an image classifier and makes its source of random batches.

  Args:
    model: images [batch, image_size, image_size, 3] to probabilities
      [batch, classes].
    optimizer: what the model's paper trains with.
    batch_size: images per step.
    image_size: height and width, pixels.
    classes: number of labels.
  """
  model.compile(
    optimizer=optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(),
    jit_compile=False,
  )

  def sample(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    shape = (batch_size, image_size, image_size, 3)
    images = rng.uniform(-1, 1, shape).astype(np.float32)
    return images, rng.integers(0, classes, batch_size, np.int32)

  return model, sample
