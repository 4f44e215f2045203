"""Sizes of microbatches that suit unequal devices, and the choice of them."""

import dataclasses

import numpy as np
import pytest

from tests.testing import problems, split_steps
from tfplace.errors import ExtractionError
from tfplace.graph import Problem
from tfplace.graph.microbatches import VariantConfig, plain_sizes
from tfplace.plan.config import PlanConfig
from tfplace.plan.proposals import proposed_sizes
from tfplace.plan.variant_search import choose_variant
from tfplace.plan.variants import StepVariant

FAST, SLOW = "GPU-fast", "GPU-slow"


def whole(kinds, examples=24, slower=5.0, memories=None):
  """The whole step, slower on slow GPUs; it holds 1600 bytes beside 2000."""
  graph, _ = split_steps.split_graph(
    layers=2, microbatches=1, num_bytes=800.0, weight=1000.0
  )
  fast = graph.time_us["GPU"]
  graph = dataclasses.replace(
    graph,
    time_us={FAST: fast, SLOW: fast * slower},
    extra={"batch_size": examples},
  )
  memories = memories or [np.inf] * len(kinds)
  return Problem(graph, problems.cluster(memories, kinds, bandwidth=1000.0))


def test_sizes_are_by_speed_for_one_and_two_a_device():
  # Speeds 5, 5, 1, 1 of 12: of 24 examples 10, 10, 2 and 2.
  found = proposed_sizes(whole([FAST, SLOW, FAST, SLOW]))
  assert found == [(10, 10, 2, 2), (5, 5, 5, 5, 1, 1, 1, 1)]


def test_equal_devices_get_no_proposals():
  assert proposed_sizes(whole([FAST] * 4)) == []
  assert proposed_sizes(whole([FAST])) == []
  assert proposed_sizes(whole([FAST, SLOW], examples=0)) == []


def test_a_device_that_is_too_slow_for_an_example_gets_none():
  found = proposed_sizes(whole([FAST, FAST, FAST, SLOW], 6, slower=50.0))
  assert found == []  # Two for each other device: those are the equal sizes.


def test_memory_limits_the_share_of_a_device():
  free, *_ = proposed_sizes(whole([FAST, SLOW], slower=2.0))
  assert free == (16, 8)
  # Half of the 2000 bytes of variables, and room for few examples beside.
  tight = whole([FAST, SLOW], slower=2.0, memories=[2_000.0, np.inf])
  limited = [sizes for sizes in proposed_sizes(tight) if len(sizes) == 2]
  assert limited[0] == free
  fast_share = 24 - max(limited[1])
  assert 1 <= fast_share < 12


@pytest.mark.parametrize("seed", range(20))
def test_sizes_are_positive_and_add_up(seed):
  rng = np.random.default_rng(seed)
  kinds = [FAST, SLOW, *rng.choice([FAST, SLOW], rng.integers(0, 4))]
  examples = int(rng.integers(2, 70))
  memories = list(rng.uniform(1000, 9000, len(kinds)))
  problem = whole(kinds, examples, float(rng.uniform(1, 9)), memories)
  for sizes in proposed_sizes(problem):
    assert sum(sizes) == examples
    assert min(sizes) >= 1
    assert sizes != plain_sizes(examples, len(sizes))


class Step:
  """A step of 24 examples on a fast GPU and one of a fifth of its speed.

  A microbatch is an op forward and one backward, in proportion to its size.
  """

  def __init__(self, kinds):
    self.opened, self.kinds = [], kinds

  def open(self, config, show):
    del show
    if config.count > 24:
      raise ExtractionError("the batch has 24 examples")
    sizes = config.sizes or plain_sizes(24, config.count)
    self.opened.append(config.sizes)
    graph, at = split_steps.split_graph(1, config.count, num_bytes=8.0)
    fast = graph.time_us["GPU"].copy()
    for i, size in enumerate(sizes):
      for kind in ("forward", "back"):
        fast[at[kind, i, 0]] = 100.0 * size
    graph = dataclasses.replace(
      graph, time_us={FAST: fast, SLOW: 5 * fast}, extra={"batch_size": 24}
    )
    memories = [np.inf] * len(self.kinds)
    cluster = problems.cluster(memories, self.kinds, 5.0, bandwidth=1000.0)
    return StepVariant(Problem(graph, cluster))


def test_auto_chooses_sizes_by_speed_where_they_are_faster():
  # Equal microbatches of 24 / k examples: with k = 2 the fast GPU alone takes
  # 4800, with 6 parts 20 and 4 examples take 4000 as well as sizes 20 and 4
  # do, but with more ops, each with an overhead.
  step = Step([FAST, SLOW])
  report = choose_variant(
    step,
    PlanConfig(budget_s=60.0, max_evaluations=600, chooses_microbatches=True),
  )
  assert (20, 4) in step.opened
  assert report.choice.variant.sizes == (20, 4)
  assert report.evaluation.step_time_us < 4100
  assert "2 microbatches of 20 and 4 examples" in report.choice.reason
  assert report.step.problem.graph.num_microbatches == 2


def test_given_sizes_stay_where_only_recomputation_is_open():
  step = Step([FAST, SLOW])
  sizes = VariantConfig.from_microbatches([16, 8])
  config = PlanConfig(
    budget_s=60.0,
    max_evaluations=400,
    variant=sizes,
    chooses_recomputation=True,
  )
  report = choose_variant(step, config)
  assert step.opened == [(16, 8)]
  assert report.choice is None
