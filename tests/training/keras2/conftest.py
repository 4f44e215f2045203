"""Every test draws its weights from one seed, so that a failure comes back."""

import pytest
import tensorflow as tf

from tests.testing.eager import run_eagerly


@pytest.fixture(autouse=True)
def seeded():
  tf.keras.utils.set_random_seed(0)


@pytest.fixture
def eagerly():
  """Functions run as they are: a few steps take less than their tracing."""
  with run_eagerly():
    yield
