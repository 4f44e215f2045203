"""The order of ops is chosen with the number of microbatches."""

import pytest

from tests.testing.clusters import linked
from tests.testing.split_steps import two_stages
from tfplace.errors import ExtractionError
from tfplace.graph import Device, Problem
from tfplace.graph.microbatches import VariantConfig
from tfplace.plan.config import PlanConfig
from tfplace.plan.search import search
from tfplace.plan.variant_search import choose_variant
from tfplace.plan.variants import StepVariant


class TwoStages:
  """The step of two examples, beside a GPU whose memory holds none of it."""

  def open(self, variant, show):
    del show
    if variant.count > 2:
      raise ExtractionError("the batch has 2 examples")
    problem = two_stages(variant.count)
    spare = Device("GPU:1", "GPU", 0.5)  # one GPU would not be split for
    cluster = linked([*problem.cluster.devices, spare], 1.0)
    return StepVariant(Problem(problem.graph, cluster))


@pytest.mark.parametrize("strategy", ["m_topo", "annealing"])
@pytest.mark.parametrize("order", ["arrival", "rank", "auto"])
def test_each_number_of_microbatches_has_its_order(strategy, order):
  config = PlanConfig(
    strategy,
    budget_s=60.0,
    max_evaluations=400,
    order=order,
    baselines=(),
    chooses_microbatches=True,
  )
  plan = choose_variant(TwoStages(), config)
  assert plan.choice.variant == VariantConfig(2)
  taken = "arrival" if order == "arrival" else "rank"
  assert plan.best.order == plan.problem.order == taken
  assert plan.best.evaluation.step_time_us == (13 if taken == "arrival" else 11)
  trials = {t.variant.count: t.order for t in plan.choice.trials}
  # The whole step is a chain: rank gains nothing there.
  assert trials[1] == ("rank" if order == "rank" else "arrival")
  said = "by rank, since as they become ready nothing faster than 13 us"
  assert (said in plan.order_reason) == (order == "auto")


def test_baselines_are_in_the_order_of_the_plan():
  config = PlanConfig("m_topo", 1.0, order="auto", baselines=("m_etf",))
  plan = search(two_stages(), config)
  assert [r.order for r in plan.results] == ["rank", "rank"]
  assert [r.evaluation.step_time_us for r in plan.results] == [11, 11]
