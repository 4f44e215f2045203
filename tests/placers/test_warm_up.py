"""Warming up compiles all that a strategy runs, and nothing is left."""

import problems
import pytest

from tfplace import placers
from tfplace.errors import TfplaceError
from tfplace.placers.search import chain
from tfplace.simulate import engine


def test_nothing_is_left_to_compile_after_warming_up():
  placers.warm_up("auto")
  kernels = [
    kernel
    for module in (chain, engine)
    for kernel in vars(module).values()
    if hasattr(kernel, "signatures")
  ]
  before = [len(kernel.signatures) for kernel in kernels]
  assert sum(before) > 0
  placers.place(
    problems.random_problem(3), "auto", budget_s=5, max_evaluations=200
  )
  assert [len(kernel.signatures) for kernel in kernels] == before


def test_unknown_strategy_lists_the_choices():
  with pytest.raises(TfplaceError, match="'magic'; choose one of single"):
    placers.warm_up("magic")
