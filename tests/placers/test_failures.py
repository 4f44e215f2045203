"""Placers inside `auto`: which run, and what is told of those that fail."""

import pytest

from tests.testing import problems
from tfplace.errors import TfplaceError
from tfplace.graph.budget import Budget
from tfplace.placers import registry
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.search.annealing import improve
from tfplace.simulate import Simulator

ERRORS = (ValueError("a value"), MemoryError(), TfplaceError("of our own"))


def failing(monkeypatch, names, error):
  """Makes the placers of these names raise."""
  known = registry.get_placer

  class Failing:
    def place(self, *_):
      raise error

  def get_placer(name, *arguments, **more):
    return Failing() if name in names else known(name, *arguments, **more)

  def search(*arguments, **options):
    if "annealing" in names:
      raise error
    return improve(*arguments, **options)

  monkeypatch.setattr(registry, "get_placer", get_placer)
  monkeypatch.setattr("tfplace.placers.auto.improve", search)


def place_by(placer, evaluations=200):
  problem = problems.random_problem(0)  # none of the placers is optimal
  return placer.place(problem, Simulator(problem), Budget(120, evaluations), 0)


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("name", ["single", "heft", "annealing"])
def test_auto_goes_on_when_a_placer_fails_in_any_way(name, error, monkeypatch):
  failing(monkeypatch, [name], error)
  result = place_by(AutoPlacer(learned=()))
  told = str(error)
  if not isinstance(error, TfplaceError):
    told = f"{type(error).__name__}: {error}"
  assert result.skipped[name] == told
  names = [tried.strategy for tried in result.tried]
  assert name not in names and "m_etf" in names
  best = min(tried.evaluation.step_time_us for tried in result.tried)
  assert result.evaluation.step_time_us <= best


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("name", ["heft", "annealing"])
def test_auto_ends_when_it_is_told_to(name, error, monkeypatch):
  failing(monkeypatch, [name], error)
  with pytest.raises(error):
    place_by(AutoPlacer(learned=()))
