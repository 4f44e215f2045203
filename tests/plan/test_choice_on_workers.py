"""The choice of a step variant with searches on Dask workers."""

import dataclasses

import pytest

from tests.plan.test_microbatch_choice import Step
from tests.testing.dask_workers import two_workers
from tfplace import plan
from tfplace.core import Problem
from tfplace.core.microbatches import WHOLE, MicrobatchConfig
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.placers.dask_workers import opened_workers
from tfplace.plan import PlanConfig, make_plan
from tfplace.plan.microbatches import choose_variant

CONFIG = PlanConfig(budget_s=3.0, chooses_microbatches=True)


@pytest.fixture(scope="module")
def address():
  with two_workers() as (found, _):
    yield found


@pytest.fixture(scope="module")
def workers(address):
  with opened_workers(address, "auto") as opened:
    yield opened


def chosen(step, workers, **changes):
  config = dataclasses.replace(CONFIG, workers=workers, **changes)
  return choose_variant(step, config)[0]


def test_workers_split_a_step_of_much_work_as_one_process_does(workers):
  # Two devices: 1000 us whole, 502 in two parts, and no less in more of them.
  found = chosen(Step(), workers)
  assert found.choice.microbatches == MicrobatchConfig(2)
  assert found.best.evaluation.step_time_us == 502.0
  assert found.best.placement.problem is found.problem


def test_workers_say_why_nothing_is_placed(workers):
  step = Step(activation=1e4, memory=60.0, devices=1)
  with pytest.raises(InfeasibleError, match="fit in up to 16 microbatches"):
    chosen(step, workers)
  with pytest.raises(TfplaceError, match="'hybrid' needs four devices"):
    chosen(Step(), workers, strategy="hybrid")


class StepSource:
  """Source of a step that is planned whole."""

  training = True
  suggests_microbatches = False

  def open(self, microbatches, show):
    del show
    return Step()(microbatches)


def test_planner_opens_the_workers_of_its_settings(address):
  stages = plan.Stages()
  config = PlanConfig(budget_s=1.0, dask=address, microbatches=WHOLE)
  found = make_plan(StepSource(), config, stages)
  assert "starting" in stages.seconds
  assert isinstance(found.placement.problem, Problem)
  assert found.evaluation.step_time_us == 1001.0


def test_settings_reject_an_address_that_is_no_text():
  with pytest.raises(TfplaceError, match="dask is 5; it must be"):
    PlanConfig(dask=5).check()
