"""The switch for tests that take long, and what they vary without it."""

import os
from collections.abc import Iterable
from typing import Any

import pytest

SLOW_TESTS = "TFPLACE_SLOW_TESTS" in os.environ
# Seeds of trainings that must find a known optimum.
TRAINING_SEEDS = (0, 1, 2) if SLOW_TESTS else (0,)
SLOW = pytest.mark.skipif(
  not SLOW_TESTS, reason="slow: TFPLACE_SLOW_TESTS is not set"
)


def slow(*values: Any):
  """A parameter of a test that runs only where slow tests run."""
  return pytest.param(*values, marks=SLOW)


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
  """Parameters of which only the quick ones run where slow tests do not."""
  return [value if value in quick else slow(value) for value in values]
