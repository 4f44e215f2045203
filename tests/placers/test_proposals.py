"""Moves that a proposer makes inside the search."""

import dataclasses
import sys
import time
import types

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.placers import auto as auto_module
from tfplace.placers import registry
from tfplace.placers.auto import AutoPlacer
from tfplace.placers.groups import GroupGraph
from tfplace.placers.registry import get_placer
from tfplace.placers.search.schedule import SearchConfig
from tfplace.placers.search.search import Search
from tfplace.simulate import Simulator

PATIENT = SearchConfig(patience=10**6)


class Given:
  """Proposes the same devices each time, after some seconds; rates nothing."""

  labels = ()

  def __init__(self, devices, seconds=0.0):
    self.devices, self.seconds = devices, seconds
    self.asked = []

  def propose(self, devices, number, rng):
    self.asked.append((devices.copy(), number))
    time.sleep(self.seconds)
    return self.devices


def searched(problem, proposer, budget, config=PATIENT):
  groups = GroupGraph(problem)
  start = groups.nearest(np.zeros(groups.num_groups, np.int64))
  search = Search(groups, 0, config=config, like=start, proposer=proposer)
  search.run([start], budget)
  return search


def wide_problem(seed=0, num_ops=400):
  rng = np.random.default_rng(seed)
  edges = sorted(
    {tuple(sorted(rng.choice(num_ops, 2, replace=False))) for _ in range(900)}
  )
  times = list(rng.uniform(1, 9, num_ops))
  return Problem(problems.graph(times, edges), problems.cluster([np.inf] * 4))


def good(problem, evaluations=60_000):
  """A placement that a long search finds."""
  budget = Budget(1e4, evaluations)
  return get_placer("annealing").place(problem, Simulator(problem), budget, 1)


@pytest.mark.parametrize("config", [PATIENT, SearchConfig(coarse_groups=1)])
def test_the_search_takes_a_better_proposal(config):
  problem = wide_problem()
  found = good(problem)
  proposer = Given(found.placement.devices)
  # Too short for the search to find anything like it, unless by chance.
  search = searched(problem, proposer, Budget(1.0), config)
  assert proposer.asked
  assert search.best_us <= found.evaluation.step_time_us * (1 + 1e-9)
  devices = GroupGraph(problem).expand(search.best)
  (us,) = Simulator(problem).run(devices[None]).step_time_us
  assert us == search.best_us  # devices and times belong together


class Asked:
  """A placer that must not run, and a proposer that counts."""

  labels = ()

  def __init__(self, monkeypatch):
    self.placed = self.proposed = 0
    known = registry.get_placer
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tf"))
    monkeypatch.setattr(auto_module, "_LEARNED_LEAST_S", 0.1)
    monkeypatch.setattr(auto_module, "_LEARNED_SETUP_S", 0.01)
    monkeypatch.setattr(registry, "open_proposer", lambda *_: self)
    monkeypatch.setattr(
      registry,
      "get_placer",
      lambda name, *given, **more: (
        self if name == "ordered" else known(name, *given, **more)
      ),
    )

  def place(self, problem, evaluator, budget, seed):
    self.placed += 1
    return get_placer("single").place(problem, evaluator, budget, seed)

  def propose(self, devices, number, rng):
    self.proposed += 1
    return devices


def split(problem):
  half = np.arange(problem.graph.num_ops, dtype=np.int32) % 2
  graph = dataclasses.replace(problem.graph, microbatch=half)
  return Problem(graph, problem.cluster)


@pytest.mark.parametrize(
  "is_split, policy, evaluations, placed, proposed",
  [
    (False, None, None, 0, True),
    (True, None, None, 1, True),
    (False, "mine", 2000, 1, False),
    (False, None, 2000, 0, False),
    (True, None, 2000, 1, False),
  ],
)
def test_when_auto_asks_a_policy(
  is_split, policy, evaluations, placed, proposed, monkeypatch
):
  asked = Asked(monkeypatch)
  problem = split(wide_problem(5)) if is_split else wide_problem(5)
  auto = AutoPlacer(learned=("ordered",), policy=policy, search=PATIENT)
  if policy is not None:
    monkeypatch.setattr(registry, "named", lambda **_: ("ordered",))
  seconds = 4.0 if evaluations is None else 1e4  # a loaded machine is slow
  budget = Budget(seconds, evaluations)
  result = auto.place(problem, Simulator(problem), budget, 0)
  assert asked.placed == placed
  assert (asked.proposed > 0) == proposed
  tried = [each.strategy for each in result.tried]
  assert len(tried) == len(set(tried)) + placed  # it calls itself single
