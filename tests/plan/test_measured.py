"""Search and measurement in turns, with a simulator in the devices' place."""

import dataclasses
import math

import pytest

from tests.testing.clusters import linked
from tests.testing.live_steps import Devices
from tfplace.errors import MeasurementError
from tfplace.graph import OpSpec, Problem, build_graph
from tfplace.plan import measured
from tfplace.plan.config import PlanConfig
from tfplace.plan.measured import search_measured


def problem(**costs):
  """Two chains of six ops that exchange tensors, on two devices.

  Split in two, a step takes some 600 us instead of 1,200 where messages are
  free, and longer than on one device where each takes 500 us of its sender.
  """
  ops = [OpSpec(f"op_{i}", "MatMul", {"CPU": 100.0}, [1e4]) for i in range(12)]
  edges = [(i, 0, i + step) for step in (2, 3) for i in range(12 - step)]
  cluster = linked(("CPU:0", "CPU:1"), 1e4, **costs)
  return Problem(build_graph("pairs", ops, edges), cluster)


CONFIG = PlanConfig("annealing", budget_s=60.0, gap=0.0, max_evaluations=800)


def test_what_runs_slower_than_one_device_is_not_chosen():
  """The costs that the search knows leave out what a message takes."""
  devices = Devices(problem(send_us=500.0))
  plan = search_measured(problem(), CONFIG, devices)
  assert plan.results[0].evaluation.step_time_us < 1200.0  # as predicted
  assert plan.measured[0].step_time_us > 1200.0
  assert plan.evaluation.step_time_us <= 1200.0


def test_costs_that_were_fitted_lead_the_next_search(monkeypatch):
  true = problem(send_us=20.0)

  def refit(known, placements, measured):
    assert len(placements) == len(measured)
    return Problem(known.graph, true.cluster)

  plan = search_measured(problem(), CONFIG, Devices(true, refit=refit))
  assert plan.evaluation.step_time_us == plan.best.evaluation.step_time_us
  monkeypatch.setattr(measured, "_MAX_ROUNDS", 1)
  once = search_measured(problem(), CONFIG, Devices(true))
  assert plan.evaluation.step_time_us <= once.evaluation.step_time_us


def test_one_round_if_prediction_and_measurement_agree():
  plan = search_measured(problem(), CONFIG, Devices(problem()))
  assert [r.strategy for r in plan.results].count("annealing") == 1


def test_no_round_begins_after_the_seconds():
  devices = Devices(problem(send_us=500.0), run_s=0.0)
  plan = search_measured(problem(), CONFIG, devices)
  assert [r.strategy for r in plan.results].count("annealing") == 1
  assert len(devices.ran) == len(set(devices.ran))


def test_a_strategy_without_a_choice_keeps_its_placement():
  devices = Devices(problem(send_us=500.0))
  config = dataclasses.replace(CONFIG, strategy="blocks")
  plan = search_measured(problem(), config, devices)
  assert plan.best.strategy == "blocks"
  assert "single" in [result.strategy for result in plan.results]


def test_nothing_that_could_be_run_is_an_error_that_says_why():
  class Broken(Devices):
    def evaluate(self, placements):
      return [
        dataclasses.replace(
          e,
          step_time_us=math.inf,
          feasible=False,
          extra={"error": "worker died"},
        )
        for e in super().evaluate(placements)
      ]

  with pytest.raises(MeasurementError, match="worker died"):
    search_measured(problem(), CONFIG, Broken(problem()))


class FirstRuns(Devices):
  """First runs take `rate` times as long, on several devices or on one."""

  def __init__(self, true, rate, spreads):
    super().__init__(true)
    self._rate, self._spreads = rate, spreads

  def evaluate(self, placements):
    known = set(self.ran)
    found = super().evaluate(placements)
    for i, placement in enumerate(placements):
      row = tuple(placement.devices.tolist())
      if row not in known and (len(set(row)) > 1) == self._spreads:
        known.add(row)
        step_us = self._rate * found[i].step_time_us
        found[i] = dataclasses.replace(found[i], step_time_us=step_us)
    return found


@pytest.mark.parametrize(("rate", "spreads"), [(0.95, True), (1.2, False)])
def test_close_placements_run_again_before_the_choice(rate, spreads):
  # Two devices take 2% longer than one, and seem to be faster once.
  true = problem(send_us=125.0)
  devices = FirstRuns(true, rate, spreads)
  plan = search_measured(problem(), CONFIG, devices)
  assert set(plan.best.placement.devices.tolist()) == {0}
  assert any(devices.ran.count(row) > 1 for row in devices.ran)


def test_near_ties_prefer_less_traffic(monkeypatch):
  # Two devices take some 1% less than one.
  true = problem(send_us=118.0)
  devices = Devices(true)
  plan = search_measured(problem(), CONFIG, devices)
  alone_us = devices.true_us([0] * 12)
  best_us = min(devices.true_us(row) for row in devices.ran)
  assert 0.98 * alone_us < best_us < alone_us
  assert plan.evaluation.step_time_us == alone_us
  monkeypatch.setattr(measured, "_GAIN", 0.0)
  plan = search_measured(problem(), CONFIG, devices)
  assert plan.evaluation.step_time_us == best_us
