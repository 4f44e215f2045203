"""Data parallelism, pipelines and hybrids on devices that differ."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.testing import problems, split_steps
from tfplace.core import Problem
from tfplace.placers import place
from tfplace.placers.rules.stages import balanced_shares

FAST, SLOW = "GPU-fast", "GPU-slow"


def step(slower=2.0, kinds=(FAST, SLOW), **sizes):
  """A step in microbatches that takes `slower` times as long on slow GPUs."""
  graph, at = split_steps.split_graph(**sizes)
  fast = graph.time_us["GPU"]
  times = {kind: fast * (slower if kind == SLOW else 1.0) for kind in kinds}
  return dataclasses.replace(graph, time_us=times), at


def placed(strategy, graph, cluster):
  return place(Problem(graph, cluster), strategy, budget_s=20)


def devices(kinds, memories=None):
  memories = memories or [np.inf] * len(kinds)
  return problems.cluster(memories, kinds, bandwidth=1000.0)


def test_devices_get_microbatches_by_speed():
  # A device of half the speed takes 2 of 6 microbatches of 1600 us.
  graph, at = step(layers=8, microbatches=6)
  result = placed("data_parallel", graph, devices([FAST, SLOW]))
  where = result.placement.devices
  assert sorted(where[at["back", i, 0]] for i in range(6)) == [0] * 4 + [1] * 2
  # A device alone takes 9600, and halves would take 9600 on the slow one.
  assert 6400 < result.evaluation.step_time_us < 7000


def test_stages_get_layers_by_speed():
  # 10 layers on devices of speeds 1, 1 and 1/2: the slow one takes fewest.
  graph, at = step(layers=10, microbatches=4)
  kinds = [FAST, SLOW, FAST]
  where = placed("pipeline", graph, devices(kinds)).placement.devices
  layers = [
    sum(where[at["forward", 0, j]] == device for j in range(10))
    for device in range(3)
  ]
  assert layers == [4, 2, 4]


def test_stages_get_layers_by_memory():
  # Variables of 10,000 bytes in 6 layers: 15,000 bytes hold one of them.
  graph, at = step(kinds=["GPU"], layers=6, microbatches=2, weight=10_000.0)
  graph = dataclasses.replace(
    graph, output_bytes=np.zeros_like(graph.output_bytes)
  )
  memories = [15_000.0, np.inf]
  result = placed("pipeline", graph, devices(["GPU", "GPU"], memories))
  where = result.placement.devices
  assert result.evaluation.feasible
  layers = [where[at["forward", 0, j]] for j in range(6)]
  assert layers.count(0) == 1
  assert len({*itertools.pairwise(layers)}) <= 3  # still two stages


@pytest.mark.parametrize("layers", [4, 6])
def test_a_hybrid_groups_alike_devices(layers):
  graph, at = step(layers=layers, microbatches=6)
  kinds = [FAST, SLOW, FAST, SLOW]
  where = placed("hybrid", graph, devices(kinds)).placement.devices
  replicas = [
    {int(where[at["back", i, j]]) for j in range(layers)} for i in range(6)
  ]
  stages = [
    {int(where[at["back", i, j]]) for i in range(6)} for j in range(layers)
  ]
  alike = ({0, 2}, {1, 3})
  assert all(x in alike for x in replicas) or all(x in alike for x in stages)


@pytest.mark.parametrize("seed", range(5))
def test_shares_are_near_the_best(seed):
  rng = np.random.default_rng(seed)
  count, replicas = int(rng.integers(1, 7)), int(rng.integers(1, 4))
  slower = rng.uniform(1, 4, replicas)
  time_us = rng.integers(1, 20, count)[:, np.newaxis] * slower
  unlimited = np.full((replicas, 1), np.inf)
  (found,) = balanced_shares(time_us, np.ones((count, 1)), unlimited)

  def longest(share):
    at = time_us[np.arange(count), list(share)]
    return np.bincount(share, at, replicas).max()

  best = min(map(longest, itertools.product(range(replicas), repeat=count)))
  # The longest-first rule on machines of different speeds: Friesen (1987).
  assert longest(found) <= 5 / 3 * best + 1e-9


def test_shares_keep_to_memory_where_time_alone_does_not():
  time_us = np.array([[1.0, 3.0]] * 4)
  held, memory = np.full((4, 1), 10.0), np.array([[20.0], [100.0]])
  fastest, within = balanced_shares(time_us, held, memory)
  assert fastest.tolist() == [0, 0, 0, 1]
  assert within.tolist() == [0, 0, 1, 1]
