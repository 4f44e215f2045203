"""Choosing k and m on hand-made steps, whose best splits are known."""

import dataclasses

import numpy as np
import pytest

from tests.testing.clusters import linked
from tests.testing.live_steps import Devices
from tests.testing.one_layer import Step
from tfplace import placers
from tfplace.errors import InfeasibleError, TfplaceError
from tfplace.graph import Cluster, Device
from tfplace.graph.microbatches import WHOLE, VariantConfig
from tfplace.plan.config import PlanConfig
from tfplace.plan.planner import make_plan
from tfplace.plan.variant_search import choose_variant

CONFIG = PlanConfig(budget_s=60.0, max_evaluations=600)


def chosen(step, base=WHOLE, config=CONFIG):
  config = dataclasses.replace(config, variant=base, chooses_microbatches=True)
  return choose_variant(step, config)


# A step, the requested variant, the chosen one, and why.
ONE_GPU = {"activation": 100.0, "memory": 60.0, "devices": 1}
CASES = [
  (
    Step(),
    WHOLE,
    (2, None),
    "nothing faster than 1 ms was found for the whole",
  ),
  # 10 us of work and 200 us of gaps; in 2 parts each device has as many gaps.
  (Step(work_us=10.0, overhead_us=100.0), WHOLE, (1, None), "takes at least"),
  # The first part's activation is freed before the second forward pass.
  (Step(**ONE_GPU), WHOLE, (2, None), "whole it does not fit in memory"),
  (Step(devices=1), WHOLE, (1, None), "there is one device for it"),
  # One after the other, two microbatches take what the whole step does.
  (Step(), VariantConfig(1, 1), (1, None), "the step is left whole"),
  (Step(devices=4, examples=2), WHOLE, (2, None), "is split into 2"),
  (Step(statistics=True), WHOLE, (1, None), "layer 'norm' computes"),
  (
    Step(statistics=True),
    VariantConfig(1, allow_batch_statistics=True),
    (2, None),
    "is split into 2",
  ),
]


@pytest.mark.parametrize("step, base, variant, reason", CASES)
def test_the_best_variant_is_chosen_with_a_reason(step, base, variant, reason):
  plan = chosen(step, base)
  microbatches = plan.choice.variant
  assert (microbatches.count, microbatches.max_in_flight) == variant
  assert reason in plan.choice.reason
  assert plan.best.evaluation.feasible
  assert plan.best.placement.problem is plan.problem


def test_step_times_are_those_by_hand():
  plan = chosen(Step())
  # Half of the work, a transfer of 1 us, the update.
  assert plan.best.evaluation.step_time_us == 502.0
  assert plan.single_device.evaluation.step_time_us == 1001.0


def test_by_arrival_memory_limits_the_number_in_flight():
  # Whole an activation takes 100 of 60 bytes, in two parts, both of them in
  # flight, 2 x 50, one at a time 50.
  config = dataclasses.replace(CONFIG, order="arrival")
  plan = chosen(Step(**ONE_GPU), config=config)
  assert plan.choice.variant == VariantConfig(2, 1)
  assert plan.single_device is None
  assert plan.choice.trials[0].why == "does not fit in memory"


def test_strategies_that_refuse_the_whole_step_split_it():
  # A microbatch of 500 us for each of two devices.
  config = dataclasses.replace(CONFIG, strategy="data_parallel")
  plan = chosen(Step(), config=config)
  assert plan.choice.variant == VariantConfig(2)
  reason = "since whole it is not placed by data_parallel"
  assert reason in plan.choice.reason
  with pytest.raises(TfplaceError, match="layer 'norm' computes statistics"):
    chosen(Step(statistics=True), config=config)
  with pytest.raises(TfplaceError, match="'hybrid' needs four devices"):
    chosen(Step(), config=dataclasses.replace(CONFIG, strategy="hybrid"))


def test_a_split_with_a_bound_above_the_step_is_not_searched():
  step = Step(work_us=1.0)

  class Slower(Step):  # each part reads all weights
    def open(self, microbatches, show):
      k = microbatches.count
      return dataclasses.replace(step, work_us=10.0 * 3**k).open(microbatches)

  plan = chosen(Slower())
  assert plan.choice.variant.is_whole
  whole, *others = plan.choice.trials
  assert whole.step_time_us == 31.0
  assert [trial.variant.count for trial in others] == [2]
  assert others[0].best is None and others[0].seconds == 0.0
  assert others[0].why == "takes at least 46 us"
  told = "the step is left whole, since in 2 microbatches it takes at least"
  assert plan.choice.reason.startswith(told)


def test_variables_that_fit_nowhere_are_not_split_in_vain():
  step = Step(variable=100.0, memory=10.0)
  with pytest.raises(InfeasibleError, match="update"):
    chosen(step)
  assert step.opened == [(1, None)]


def test_what_fits_in_no_split_says_what_was_tried():
  step = Step(activation=1e4, memory=60.0, devices=1)
  with pytest.raises(InfeasibleError, match="fit in up to 16 microbatches"):
    chosen(step)
  assert (16, 1) in step.opened


def test_by_evaluations_the_same_seed_gives_the_same_plan():
  config = PlanConfig(budget_s=1e3, seed=3, max_evaluations=2000)
  first, second = (
    chosen(Step(layers=6, overhead_us=9.0), config=config) for _ in range(2)
  )
  assert first.choice.variant == second.choice.variant
  times = [[t.step_time_us for t in p.choice.trials] for p in (first, second)]
  assert times[0] == times[1]
  np.testing.assert_array_equal(
    first.best.placement.devices, second.best.placement.devices
  )


def test_a_strategy_that_refuses_the_split_step_leaves_it_whole(monkeypatch):
  place = placers.place

  def small_only(problem, *args, **kwargs):
    if problem.graph.num_ops > 3:
      raise TfplaceError("too many ops")
    return place(problem, *args, **kwargs)

  monkeypatch.setattr(placers, "place", small_only)
  plan = chosen(Step())
  assert plan.choice.variant.is_whole
  assert "since too many ops" in plan.choice.reason


class BesideCpu(Step):
  """One GPU, and a CPU that takes 100 times as long."""

  training = True
  suggests_microbatches = True

  def graph(self, microbatches):
    graph = super().graph(microbatches)
    gpu_us = graph.time_us["GPU"]
    times = {"GPU": gpu_us, "CPU": 100 * gpu_us}
    return dataclasses.replace(graph, time_us=times)

  def cluster(self):
    devices = [Device(f"GPU:{i}", "GPU", self.memory) for i in range(2)]
    return linked([*devices[: self.devices], "CPU:0"], 1e6, 1.0)


@pytest.mark.parametrize("chooses", [False, True])
def test_a_step_is_compared_with_one_gpu_that_accumulates(chooses):
  # The GPU holds half of the activation at a time: in 2 microbatches, one of
  # which is in flight, it takes 1,001 us. The CPU would take 100,100.
  step = BesideCpu(devices=1, activation=100.0, memory=75.0)
  request = VariantConfig(max_in_flight=1)
  config = dataclasses.replace(
    CONFIG, variant=request, chooses_microbatches=chooses
  )
  plan = make_plan(step, config)
  assert plan.single_device.step_time_us == 1001.0
  assert "CPU:0 alone" not in plan.message


def test_a_step_that_no_gpu_holds_is_compared_with_the_cpu():
  step = BesideCpu(devices=1, variable=100.0, memory=75.0)
  plan = make_plan(step, CONFIG)
  assert plan.single_device.step_time_us == 100 * 1001.0
  assert "x CPU:0 alone" in plan.message


def test_requested_microbatches_are_compared_with_the_whole_step():
  # Each op has an overhead of 100 us after it, but the last: whole, 3 ops on
  # one device take 1,001 + 200 us, and 9 ops of 4 microbatches 1,001 + 800.
  step = BesideCpu(devices=1)
  devices = [Device("GPU:0", "GPU", op_overhead_us=100.0)]
  step.cluster = lambda: Cluster("one", tuple(devices))
  plan = make_plan(step, dataclasses.replace(CONFIG, variant=VariantConfig(4)))
  assert plan.evaluation.step_time_us == 1801.0
  assert plan.single_device.step_time_us == 1201.0


def measured(slower, step=None):
  """The choice where a split step takes `slower` times as predicted."""
  step = step or Step()

  class Live:
    def open(self, variant, show):
      opened = step.open(variant)
      is_microbatched = opened.problem.graph.names[0].startswith("microbatch_")
      devices = Devices(opened.problem, slower if is_microbatched else 1.0)
      return dataclasses.replace(opened, live=devices)

  config = dataclasses.replace(CONFIG, measure=True, chooses_microbatches=True)
  return choose_variant(Live(), config)


def test_the_split_that_runs_faster_than_the_whole_step_is_taken():
  plan = measured(slower=1.1)
  assert plan.choice.variant == VariantConfig(2)
  assert plan.evaluation.step_time_us == pytest.approx(1.1 * 502.0)
  assert plan.problem.graph.names == plan.step.problem.graph.names
  whole, divided = plan.choice.trials[:2]
  assert (whole.measured_us, divided.measured_us) == (1001.0, 1.1 * 502.0)


def test_a_split_that_runs_slower_is_not_taken():
  plan = measured(slower=3.0)
  assert plan.choice.variant.is_whole
  assert plan.evaluation.step_time_us == 1001.0
  assert "microbatch_0/f0" not in plan.step.problem.graph.names
  assert (
    "nothing faster than 1.51 ms was found in 2 microbatches"
    in plan.choice.reason
  )


def test_a_split_that_runs_faster_than_predicted_is_taken():
  # Predicted 212 us whole, and 314 in two parts.
  plan = measured(0.5, Step(work_us=10.0, overhead_us=100.0))
  assert plan.choice.variant == VariantConfig(2)
  assert "microbatch_0/f0" in plan.step.problem.graph.names
  whole, divided = plan.choice.trials[:2]
  assert plan.evaluation.step_time_us == divided.measured_us < whole.measured_us
