"""Shares and rests of budgets."""

import pytest

from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget, check_budget


def test_fraction_is_of_seconds_and_evaluations():
  assert Budget(10.0).fraction(0.25).seconds == 2.5
  assert Budget(10.0).fraction(0.25).is_timed
  assert Budget(10.0, 7).fraction(0.5).max_evaluations == 3
  assert Budget(10.0, 7).fraction(0.01).max_evaluations == 1


def test_rest_excludes_what_was_used_and_is_never_negative():
  rest = Budget(1e6, 10).minus(4, seconds=100.0)
  assert rest.max_evaluations == 6
  assert 0 < rest.seconds <= 1e6 - 100
  assert Budget(1e6, 10).minus(12).max_evaluations == 0
  assert Budget(1e6).minus(12, seconds=2e6).seconds == 0


@pytest.mark.parametrize("budget_s", [0, -1, float("inf"), float("nan"), "9"])
def test_seconds_must_be_finite_and_above_zero(budget_s):
  with pytest.raises(TfplaceError, match="budget_s is"):
    check_budget(budget_s)
