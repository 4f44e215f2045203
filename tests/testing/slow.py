"""The switch for tests that take long, and what they vary without it."""

import os

SLOW_TESTS = "TFPLACE_SLOW_TESTS" in os.environ
# Of trainings that must find a known optimum.
TRAINING_SEEDS = (0, 1, 2) if SLOW_TESTS else (0,)
