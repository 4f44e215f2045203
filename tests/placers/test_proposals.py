"""Moves that a proposer makes inside the search."""

import dataclasses
import sys
import threading
import time
import types

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Problem
from tfplace.core.budget import Budget
from tfplace.errors import TfplaceError
from tfplace.placers import auto as auto_module
from tfplace.placers import registry
from tfplace.placers.auto import AutoConfig, AutoPlacer
from tfplace.placers.groups import GroupGraph
from tfplace.placers.registry import get_placer
from tfplace.placers.search.config import SearchConfig
from tfplace.placers.search.search import Search
from tfplace.simulate import Simulator

PATIENT = SearchConfig(patience=10**6)
QUICK = AutoConfig(learned_least_s=0.1, learned_setup_s=0.01)


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
  search = Search(groups, 0, config, start, proposer)
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


def test_a_proposal_of_a_step_of_no_time_is_taken():
  # Apart, both ops take 0 us; together, one of them takes 5.
  times = [{"GPU": 0.0, "CPU": 5.0}, {"GPU": 5.0, "CPU": 0.0}] * 30
  problem = Problem(
    problems.graph(times, []), problems.cluster([np.inf] * 2, ["GPU", "CPU"])
  )
  proposer = Given(np.arange(60, dtype=np.int32) % 2)
  assert searched(problem, proposer, Budget(5.0)).best_us == 0.0


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


def test_proposals_are_about_allowed_placements_of_the_problem():
  problem = wide_problem(1)
  proposer = Given(np.zeros(problem.graph.num_ops, np.int32))
  searched(problem, proposer, Budget(0.5))
  simulator = Simulator(problem)
  times = [simulator.run(d[None]).step_time_us[0] for d, _ in proposer.asked]
  # Each of the two chains asks about its best, which never becomes worse.
  assert len(times) > 2 and np.isfinite(times).all()
  assert times[-1] < times[0]


def test_useless_proposals_take_a_small_share_of_the_time():
  problem = wide_problem(2)
  useless = Given(np.zeros(problem.graph.num_ops, np.int32), seconds=0.01)
  began = time.perf_counter()
  searched(problem, useless, Budget(3.0))
  taken = time.perf_counter() - began
  share = len(useless.asked) * useless.seconds / (2 * taken)  # two chains
  assert 0.0 < share < 0.15  # 5% of each chain, and a busy machine


def test_a_worse_proposal_changes_nothing():
  problem = wide_problem(3)
  groups = GroupGraph(problem)
  start = groups.nearest(np.zeros(groups.num_groups, np.int64))
  search = Search(groups, 0, PATIENT, start)
  search.run([start], Budget(1e4, 4000))
  chain = search._chains[0]
  chain.restart(chain.best)
  before = chain.devices.copy(), chain.current_us, chain.best_us
  chain.jump(np.zeros(groups.num_groups, np.int32))
  assert (chain.devices == before[0]).all()
  assert (chain.current_us, chain.best_us) == before[1:]
  again = chain._state.op_devices.copy()
  chain.restart(chain.devices)
  assert (chain._state.op_devices == again).all()
  assert chain.current_us == before[1]


def test_a_budget_of_evaluations_asks_nobody():
  # Whether a proposal pays is measured, and results must not depend on that.
  problem = wide_problem(4)
  proposer = Given(np.zeros(problem.graph.num_ops, np.int32))
  searched(problem, proposer, Budget(1e4, 2000))
  assert not proposer.asked


class Asked:
  """A placer that must not run, and a proposer that counts."""

  labels = ()

  def __init__(self, monkeypatch):
    self.placed = self.proposed = 0
    known = registry.get_placer
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tf"))
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
    (False, "mine", None, 0, True),
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
  config = AutoConfig(learned_least_s=0.1, learned_setup_s=0.01, search=PATIENT)
  auto = AutoPlacer(learned=("ordered",), policy=policy, config=config)
  if policy is not None:
    monkeypatch.setattr(registry, "named", lambda **_: ("ordered",))
  seconds = 1.0 if evaluations is None else 1e4
  budget = Budget(seconds, evaluations)
  result = auto.place(problem, Simulator(problem), budget, 0)
  assert asked.placed == placed
  assert (asked.proposed > 0) == proposed
  tried = [each.strategy for each in result.tried]
  assert len(tried) == len(set(tried)) + placed  # it calls itself single


def test_a_short_search_does_not_wait_for_a_policy(monkeypatch):
  asked = Asked(monkeypatch)
  problem = wide_problem(5)
  config = AutoConfig(learned_setup_s=0.2, search=PATIENT)  # seven times
  auto = AutoPlacer(learned=("ordered",), config=config)
  result = auto.place(problem, Simulator(problem), Budget(1.0), 0)
  assert not asked.proposed
  assert "fewer than 1.4 s" in result.skipped["ordered"]


def test_a_policy_that_fails_beside_the_others_is_named(monkeypatch):
  def broken(*_):
    raise TfplaceError("no such policy")

  Asked(monkeypatch)
  monkeypatch.setattr(registry, "open_proposer", broken)
  problem = split(wide_problem(6))
  auto = AutoPlacer(config=QUICK)
  result = auto.place(problem, Simulator(problem), Budget(0.5), 0)
  assert result.skipped["ordered"] == "no such policy"
  assert "annealing" in [each.strategy for each in result.tried]


def test_what_interrupts_the_placers_ends_the_policy(monkeypatch):
  asked = Asked(monkeypatch)

  def slow(problem, evaluator, budget, seed):
    while not budget.minus(0).is_over:  # a new budget sees the end, too
      time.sleep(0.01)
    return get_placer("single").place(problem, evaluator, budget, seed)

  def interrupted(*_):
    raise KeyboardInterrupt

  asked.place = slow
  monkeypatch.setattr(auto_module._Run, "search", interrupted)
  real = auto_module._Run.attempt_classical

  def attempt(run, strategy):
    if strategy == "metis":
      raise KeyboardInterrupt
    real(run, strategy)

  monkeypatch.setattr(auto_module._Run, "attempt_classical", attempt)
  problem = split(wide_problem(7))
  began = time.monotonic()
  with pytest.raises(KeyboardInterrupt):
    AutoPlacer().place(problem, Simulator(problem), Budget(600.0), 0)
  assert time.monotonic() - began < 60.0  # it had 90 s


def test_a_given_evaluator_serves_one_thread(monkeypatch):
  class Evaluator:
    def __init__(self, problem):
      self.problem, self.threads = problem, set()
      self._simulator = Simulator(problem)

    def evaluate(self, placements):
      self.threads.add(threading.get_ident())
      return self._simulator.evaluate(placements)

  asked = Asked(monkeypatch)
  asked.place = lambda problem, evaluator, budget, seed: get_placer(
    "single"
  ).place(problem, evaluator, budget, seed)
  problem = split(wide_problem(8))
  evaluator = Evaluator(problem)
  auto = AutoPlacer(config=QUICK)
  result = auto.place(problem, evaluator, Budget(1.0), 0)
  assert evaluator.threads == {threading.get_ident()}
  assert "ordered" not in result.skipped
