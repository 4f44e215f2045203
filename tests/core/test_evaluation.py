"""Properties of evaluations."""

import dataclasses
import math

import pytest

from tfplace.core import Evaluation

ONE = Evaluation(
  step_time_us=30.0,
  feasible=True,
  peak_memory_bytes={},
  busy_us={},
  bytes_moved=0.0,
  lower_bound_us=20.0,
  source="simulated",
)


def test_the_ratio_to_the_bound_is_what_could_be_gained():
  assert ONE.ratio_to_bound == 1.5


@pytest.mark.parametrize(
  "changed", [{"step_time_us": math.inf}, {"lower_bound_us": 0.0}], ids=str
)
def test_a_failed_step_or_no_bound_has_no_ratio(changed):
  assert dataclasses.replace(ONE, **changed).ratio_to_bound is None
