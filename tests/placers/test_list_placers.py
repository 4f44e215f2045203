import dataclasses

import numpy as np
import pytest

from tests.testing import problems
from tfplace.core import Problem
from tfplace.core.cluster import MESSAGE_COSTS
from tfplace.core.paths import upward_ranks
from tfplace.placers import place
from tfplace.placers.groups import GroupGraph
from tfplace.placers.list_scheduling.costs import (
  list_tables,
  mean_times,
)
from tfplace.simulate.links import mean_transfer


def placed(problem, strategy):
  return place(problem, strategy, budget_s=5).placement.devices.tolist()


def test_upward_ranks_by_hand():
  # A link moves 10 bytes/us and takes 1 us. Ranks from the end: o3: 2;
  # o1: 3 + (20/10 + 1) + 2 = 8; o2: 4 + (0 + 1) + 2 = 7;
  # o0: 1 + max(1 + 8, 1 + 7) = 10 (its own output has 0 bytes).
  problem = Problem(
    problems.graph(
      [1.0, 3.0, 4.0, 2.0],
      [(0, 1), (0, 2), (1, 3), (2, 3)],
      output_bytes=[(0.0,), (20.0,), (0.0,), (0.0,)],
    ),
    problems.cluster([np.inf] * 2, bandwidth=10.0, latency=1.0),
  )
  tables = list_tables(GroupGraph(problem))
  ranks = upward_ranks(
    problem.graph, mean_times(tables), *mean_transfer(problem.cluster)
  )
  assert ranks.tolist() == [10.0, 8.0, 7.0, 2.0]


@pytest.mark.parametrize("strategy", ["heft", "m_etf"])
def test_independent_ops_are_spread(strategy):
  # Longest first: 5 | 4, then 3 after the 4, then 2 after the 5: 7 and 7.
  problem = Problem(
    problems.graph([2.0, 3.0, 4.0, 5.0], []), problems.cluster([np.inf] * 2)
  )
  devices = placed(problem, strategy)
  assert devices[0] == devices[3] != devices[1] == devices[2]


@pytest.mark.parametrize("strategy", ["heft", "m_etf", "m_sct"])
@pytest.mark.parametrize("field", MESSAGE_COSTS)
def test_what_messages_take_of_devices_keeps_a_fork_together(strategy, field):
  # o0 feeds o1 and o2, 8 bytes each. A message takes 8 us or more of a device.
  problem = Problem(
    problems.graph(
      [5.0, 3.0, 3.0], [(0, 1), (0, 2)], output_bytes=[(8.0,), (0.0,), (0.0,)]
    ),
    problems.cluster([np.inf] * 2, bandwidth=1e6),
  )
  costs = {field: 1.0 if field.endswith("byte") else 8.0}
  links = tuple(
    dataclasses.replace(link, **costs) for link in problem.cluster.links
  )
  cluster = dataclasses.replace(problem.cluster, links=links)
  assert len(set(placed(problem, strategy))) > 1
  assert len(set(placed(Problem(problem.graph, cluster), strategy))) == 1


@pytest.mark.parametrize("strategy", ["heft", "m_etf"])
def test_dear_transfers_keep_a_fork_together(strategy):
  # o0 feeds o1 and o2; sending its 1000 bytes takes longer than both ops.
  problem = Problem(
    problems.graph(
      [5.0, 3.0, 3.0],
      [(0, 1), (0, 2)],
      output_bytes=[(1000.0,), (0.0,), (0.0,)],
    ),
    problems.cluster([np.inf] * 2, bandwidth=1.0),
  )
  assert len(set(placed(problem, strategy))) == 1


def test_heft_fills_idle_gaps():
  # Ranks 12, 8, 6 and 1. o0 takes d0 for [0, 4], and o1 with its 1000 bytes
  # must follow it, [4, 12]... of d1, which waits for nothing, o2 takes [0, 6]
  # and o3 is inserted behind it rather than after o1.
  problem = Problem(
    problems.graph(
      [4.0, 8.0, 6.0, 1.0],
      [(0, 1)],
      output_bytes=[(1000.0,), (0.0,), (0.0,), (0.0,)],
    ),
    problems.cluster([np.inf] * 2, bandwidth=1.0),
  )
  devices = placed(problem, "heft")
  assert devices[0] == devices[1] != devices[2] == devices[3]


def test_heft_counts_transfers_that_wait_for_one_another():
  # o0 ends at 1; o1 ... o4 need 10 bytes of it or of its like, and each
  # transfer takes 10 us on one channel: all stay, for a step of 1 + 4 * 4.
  problem = Problem(
    problems.graph(
      [1.0, 4.0, 4.0, 4.0, 4.0],
      [(0, i) for i in range(1, 5)],
      output_bytes=[(200.0,)] + [(0.0,)] * 4,
    ),
    problems.cluster([np.inf] * 2, bandwidth=10.0),
  )
  result = place(problem, "heft", budget_s=5)
  assert result.evaluation.step_time_us == 17.0


def test_m_etf_takes_the_earliest_start():
  # Both devices are free at 0; a GPU of 2 us and one of 2 us: three equal
  # ops start at 0, 0 and 2.
  problem = Problem(
    problems.graph([2.0, 2.0, 2.0], []), problems.cluster([np.inf] * 2)
  )
  result = place(problem, "m_etf", budget_s=5)
  assert result.evaluation.step_time_us == 4.0
  assert sorted(result.placement.devices) == [0, 0, 1]


def test_m_topo_fills_to_an_equal_share_of_memory():
  # 6 ops of 10 bytes on 3 devices: a share of 20 and the largest op, 10, so
  # that the devices take 3, 3 and 0 (the paper's rule).
  problem = Problem(
    problems.graph(
      [1.0] * 6,
      [(i, i + 1) for i in range(5)],
      persistent_bytes=[10.0] * 6,
    ),
    problems.cluster([1000.0] * 3),
  )
  assert placed(problem, "m_topo") == [0, 0, 0, 1, 1, 1]


def test_blocks_balance_time_along_the_order():
  # 12 us in all: the first op (6 us) is half of the work.
  problem = Problem(
    problems.graph([6.0, 2.0, 2.0, 2.0], [(0, 1), (1, 2), (2, 3)]),
    problems.cluster([np.inf] * 2),
  )
  assert placed(problem, "blocks") == [0, 1, 1, 1]


def test_weights_follow_their_first_consumer():
  # o2 and o3 are weights that take no time; o0 and o1 are independent and go
  # to two devices, each with its own weight.
  problem = Problem(
    problems.graph(
      [5.0, 5.0, 0.0, 0.0],
      [(2, 0), (3, 1)],
      output_bytes=[(0.0,), (0.0,), (100.0,), (100.0,)],
      persistent_bytes=[0.0, 0.0, 100.0, 100.0],
    ),
    problems.cluster([1000.0] * 2),
  )
  for strategy in ("heft", "m_etf", "blocks"):
    devices = placed(problem, strategy)
    assert devices[0] == devices[2] != devices[1] == devices[3], strategy


def test_single_sends_what_it_cannot_run_elsewhere():
  problem = Problem(
    problems.graph([1.0, {"CPU": 9.0}, 1.0], [(0, 1), (1, 2)]),
    problems.cluster([np.inf] * 2, kinds=["CPU", "GPU"]),
  )
  assert placed(problem, "single") == [1, 0, 1]


def test_single_takes_the_fastest_device_of_the_main_kind():
  problem = Problem(
    problems.graph([{"CPU": 2.0, "GPU": 5.0, "TPU": 4.0}], []),
    problems.cluster([np.inf] * 3, kinds=["GPU", "TPU", "CPU"]),
  )
  assert placed(problem, "single") == [1]
  assert placed(problem, "cpu") == [2]


def test_a_long_graph_of_short_ops_is_not_all_sources():
  # A random tree, each op far below its longest path.
  rng = np.random.default_rng(0)
  edges = [(int(rng.integers(max(0, i - 20), i)), i) for i in range(1, 4000)]
  problem = Problem(
    problems.graph([1.0] * 4000, edges), problems.cluster([np.inf] * 2)
  )
  for strategy in ("heft", "m_etf"):
    counts = np.bincount(placed(problem, strategy), minlength=2)
    assert counts.min() > 1000, strategy
