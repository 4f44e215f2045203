"""Warming up compiles all that a strategy runs, and nothing is left."""

import sys

import problems
import pytest

from tfplace import placers
from tfplace.errors import TfplaceError


def test_nothing_is_left_to_compile_after_warming_up():
  placers.warm_up("auto")
  before = signatures()
  wanted = (
    "chain._run",
    "earliest_start.earliest_start",
    "coarsen._merge",
  )
  for kernel in (*wanted, "engine.simulate", "simulator._simulate_rows"):
    assert before[kernel] == 1  # for one type of each argument
  assert max(before.values()) == 1
  placers.place(
    problems.random_problem(0), "auto", budget_s=5, max_evaluations=200
  )
  assert signatures() == before


def signatures():
  """How often each kernel that Python calls has been compiled or loaded."""
  return {
    f"{name.split('.')[-1]}.{kernel.py_func.__name__}": len(kernel.signatures)
    for name in sorted(sys.modules)
    if name.startswith(("tfplace.placers.", "tfplace.simulate."))
    for kernel in vars(sys.modules[name]).values()
    if hasattr(kernel, "signatures")
    and not kernel.targetoptions["no_cpython_wrapper"]
    and kernel.py_func.__module__ == name
  }


def test_unknown_strategy_lists_the_choices():
  with pytest.raises(TfplaceError, match="'magic'; choose one of single"):
    placers.warm_up("magic")
