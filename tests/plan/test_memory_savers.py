"""The race of recomputation and microbatches where memory is short.

A step of three forward and three backward ops of 100 us on one GPU. The first
and the last forward op leave 50 bytes each for the backward pass, so it holds
110 at once. Either gets by with 60.
"""

import dataclasses

import numpy as np
import pytest

from tests.testing.clusters import linked
from tfplace.errors import InfeasibleError
from tfplace.graph import Device, OpSpec, Placement, Problem, build_graph
from tfplace.graph.evaluation import Result
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.plan.config import PlanConfig
from tfplace.plan.proposals import is_short_of_memory
from tfplace.plan.variant_search import choose_variant
from tfplace.plan.variants import StepVariant, VariantTrial
from tfplace.simulate import Simulator

WAYS = ("chooses_microbatches", "chooses_recomputation")


@dataclasses.dataclass
class Step:
  memory: float
  opened: list = dataclasses.field(default_factory=list)

  def open(self, config, show):
    del show
    self.opened.append(config)
    ops, edges, last = [], [], None
    for i in range(config.count):
      last = self.add_microbatch(config, i, ops, edges, last)
      edges.append((last, 0, -1))
    ops.append(OpSpec("update", "X", {"GPU": 1.0}, [0.0]))
    edges = [(a, o, len(ops) - 1 if b < 0 else b) for a, o, b in edges]
    gpu = Device("GPU:0", "GPU", self.memory, op_overhead_us=1.0)
    cluster = linked([gpu, "CPU:0"])
    return StepVariant(Problem(build_graph("step", ops, edges), cluster))

  def add_microbatch(self, config, i, ops, edges, before):
    k, first = config.count, len(ops)
    scope, of = (f"microbatch_{i}/", i) if k > 1 else ("", None)

    def add(name, size, us=100.0, **kinds):
      time_us = {"GPU": us / k, **kinds}
      spec = OpSpec(scope + name, "X", time_us, [size / k], microbatch=of)
      ops.append(spec)
      return len(ops) - 1

    f0, f1, f2 = (add(f"f{n}", size) for n, size in enumerate((50, 10, 50)))
    b2, b1, b0 = (add(f"b{n}", 0.0) for n in (2, 1, 0))
    source = f0
    if not config.recompute.is_none:
      source = add("recompute_0/f0", 50)
      edges.append((b1, -1, source))
    edges += [(f0, 0, f1), (f1, 0, f2), (f2, 0, b2), (b2, 0, b1), (b1, 0, b0)]
    edges.append((source, 0, b0))
    if config.max_in_flight == 1 and before is not None:
      edges.append((before, -1, first))
    return b0


def chosen(step, *ways, **more):
  config = PlanConfig(
    budget_s=60.0, max_evaluations=400, **dict.fromkeys(ways, True), **more
  )
  report = choose_variant(step, config)
  return report


def test_nothing_is_tried_where_memory_is_not_short():
  step = Step(memory=1e6)
  assert chosen(step, "chooses_recomputation").choice is None
  assert step.opened == [WHOLE]


def test_recomputation_alone():
  report = chosen(Step(memory=80.0), "chooses_recomputation")
  assert report.choice.variant.recompute.everything
  assert "since whole it does not fit in memory" in report.choice.reason
  assert 700 < report.best.evaluation.step_time_us < 720


def test_both_share_one_race():
  report = chosen(Step(memory=80.0), *WAYS)
  tried = {
    (trial.variant.count, not trial.variant.recompute.is_none)
    for trial in report.choice.trials
  }
  assert {(1, False), (1, True)} <= tried
  assert any(count > 1 for count, *_ in tried)
  best = min(trial.step_time_us for trial in report.choice.trials)
  assert report.best.evaluation.step_time_us <= 1.02 * best


def test_a_fixed_number_of_microbatches_stays():
  base = VariantConfig(2)
  step = Step(memory=60.0)
  report = chosen(step, *WAYS[1:], variant=base)
  assert {config.count for config in step.opened} == {2}
  assert {config.max_in_flight for config in step.opened} == {None}
  assert report.best.evaluation.feasible


def test_the_error_says_what_was_tried():
  with pytest.raises(InfeasibleError, match="if all layers are recomputed"):
    chosen(Step(memory=55.0), *WAYS[1:])


@pytest.mark.parametrize("on_gpu, is_short", [(9, False), (8, True), (0, True)])
def test_work_on_cpus_beside_a_gpu_says_that_memory_is_short(on_gpu, is_short):
  times = {"GPU": 10.0, "CPU": 100.0}
  ops = [OpSpec(f"op{i}", "X", times, [0.0]) for i in range(10)]
  gpu = Device("GPU:0", "GPU", 1e9)
  problem = Problem(build_graph("g", ops, []), linked([gpu, "CPU:0"]))
  devices = np.array([0] * on_gpu + [1] * (10 - on_gpu))
  (evaluation,) = Simulator(problem).evaluate(devices[None])
  placement = Placement(problem, devices)
  best = Result("auto", placement, evaluation, (), 0.0, 1)
  trial = VariantTrial(WHOLE, StepVariant(problem), best)
  assert is_short_of_memory(trial) == is_short
