"""Every test draws its weights from one seed, so that a failure comes back."""

import pytest
import tensorflow as tf


@pytest.fixture(autouse=True)
def seeded():
  tf.keras.utils.set_random_seed(0)
