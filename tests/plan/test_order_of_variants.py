"""The order of ops is chosen with the number of microbatches."""

import pytest

from tests.testing.clusters import linked
from tfplace.errors import ExtractionError
from tfplace.graph import Device, OpSpec, Problem, build_graph
from tfplace.graph.microbatches import VariantConfig
from tfplace.plan.config import PlanConfig
from tfplace.plan.search import search
from tfplace.plan.variant_search import choose_variant
from tfplace.plan.variants import StepVariant


class TwoStages:
  def open(self, variant, show):
    del show
    return two_stages(variant)


def two_stages(microbatches):
  """Two stages, each on a device of its own: what the second GPU's memory holds
  is none of it. 14 us of work and an update.

  Whole 2 + 4 + 2 + 6 and the update. In two parts, by hand, 13 us as ops become
  ready, for the second forward pass (2 us) of the second stage goes before the
  first backward pass there, and 11 by rank.
  """
  k = microbatches.count
  if k > 2:
    raise ExtractionError("the batch has 2 examples")
  ops, edges = [], []
  for m in range(k):
    scope, first = f"microbatch_{m}/" if k > 1 else "", len(ops)
    number = m if k > 1 else None
    for name, kind, us in (
      ("f0", "GPU", 2.0),
      ("f1", "TPU", 4.0),
      ("b1", "TPU", 2.0),
      ("b0", "GPU", 6.0),
    ):
      time_us = {kind: us / k}
      spec = OpSpec(scope + name, "X", time_us, (0.0,), 1.0, microbatch=number)
      ops.append(spec)
    edges += [(first + i, 0, first + i + 1) for i in range(3)]
    edges.append((first + 3, 0, 4 * k))
  ops.append(OpSpec("update", "X", {"GPU": 1.0}, (), 1.0))
  devices = (
    Device("GPU:0", "GPU"),
    Device("TPU:0", "TPU"),
    Device("GPU:1", "GPU", 0.5),  # one GPU would not be split for
  )
  problem = Problem(build_graph("g", ops, edges), linked(devices, 1.0))
  return StepVariant(problem)


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
  problem = two_stages(VariantConfig(2)).problem
  config = PlanConfig("m_topo", 1.0, order="auto", baselines=("m_etf",))
  plan = search(problem, config)
  assert [r.order for r in plan.results] == ["rank", "rank"]
  assert [r.evaluation.step_time_us for r in plan.results] == [11, 11]
