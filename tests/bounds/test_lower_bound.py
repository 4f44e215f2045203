import dataclasses
import time
import types

import numpy as np
import pytest

from tests.testing import exact, problems
from tests.testing.random_problems import TINY, costly_case, random_case
from tests.testing.slow import SLOW_TESTS
from tfplace.bounds import lower_bound, tightened, tightened_within
from tfplace.graph import OpSpec, Problem, build_graph
from tfplace.placers import place
from tfplace.simulate import Simulator
from tfplace.simulate.links import serial_us

FREE = 1e12  # bytes per microsecond


def check_bound(problem, us, argument):
  """The bound is `us` by `argument`, tighter than the simple one, and what
  the best placement takes."""
  bound = lower_bound(problem)
  assert bound.us == pytest.approx(us, rel=1e-6)
  assert bound.by_argument[argument] == pytest.approx(us, rel=1e-6)
  assert problem.simple_bound_us < 0.95 * us
  return exact.optimum(problem)


@pytest.mark.parametrize("block", range(20 if SLOW_TESTS else 4))
def test_never_above_the_optimum_nor_below_the_simple_bound(block):
  tight = 0
  for seed in range(250 * block, 250 * (block + 1)):
    problem, _ = random_case(np.random.default_rng(seed), **TINY)
    best = exact.optimum(problem)
    bound = lower_bound(problem)
    assert bound.us >= problem.simple_bound_us, f"seed {seed}"
    assert bound.us == max(bound.by_argument.values())
    for argument, us in bound.by_argument.items():
      assert us <= best * (1 + 1e-12), f"seed {seed}: {argument}"
    tight += best < np.inf and bound.us > 0.999 * best
  assert tight > 80  # it would be easy to be right with 0


@pytest.mark.parametrize("block", range(10 if SLOW_TESTS else 2))
def test_never_above_the_optimum_where_messages_take_time(block):
  for seed in range(250 * block, 250 * (block + 1)):
    problem, _ = costly_case(np.random.default_rng(seed), **TINY)
    best = exact.optimum(problem)
    bound = lower_bound(problem)
    for argument, us in bound.by_argument.items():
      assert us <= best * (1 + 1e-12), f"seed {seed}: {argument}"
    assert best <= serial_us(problem) * (1 + 1e-12) or best == np.inf


def test_path_pays_for_sending_and_receiving():
  # a and b run on different kinds: 2, then 3 + 4 bytes * 0.5 to send, 4 / 1
  # on the link, 1 + 4 * 0.25 to receive, and 5.
  problem = Problem(
    problems.graph(
      [{"GPU": 2.0}, {"CPU": 5.0}], [(0, 1)], output_bytes=[(4.0,), ()]
    ),
    problems.cluster([np.inf] * 2, kinds=["GPU", "CPU"], bandwidth=1.0),
  )
  links = tuple(
    dataclasses.replace(
      link,
      send_us=3.0,
      send_us_per_byte=0.5,
      recv_us=1.0,
      recv_us_per_byte=0.25,
    )
    for link in problem.cluster.links
  )
  cluster = dataclasses.replace(problem.cluster, links=links)
  assert check_bound(Problem(problem.graph, cluster), 18, "path") == 18


def test_work_knows_that_a_cpu_is_slow():
  # 40 us on two GPUs, 100 times as much on the CPU. The share y of an op that
  # the CPU takes balances them: (40 - 10 y) / 2 = 1000 y, so y = 20 / 1005.
  problem = Problem(
    problems.graph([{"GPU": 10.0, "CPU": 1000.0}] * 4, []),
    problems.cluster([np.inf] * 3, kinds=["GPU", "GPU", "CPU"]),
  )
  best = check_bound(problem, 1000 * 20 / 1005, "work")
  assert best == 20  # two ops on each GPU: nothing is really divisible


def test_work_knows_that_memory_drives_ops_to_the_cpu():
  # Two of the four ops fit on the GPU: the CPU must take two, 10 us each.
  problem = Problem(
    problems.graph(
      [{"GPU": 1.0, "CPU": 10.0}] * 4, [], persistent_bytes=[10.0] * 4
    ),
    problems.cluster([20.0, np.inf], kinds=["GPU", "CPU"]),
  )
  assert check_bound(problem, 20, "work") == 20


def test_path_pays_the_gap_where_moving_costs_more():
  # 2 + 5 + 2 + 5 + 2, or transfers of 8 us instead of the gaps of 5.
  problem = Problem(
    problems.graph([2.0] * 3, [(0, 1), (1, 2)]),
    problems.cluster([np.inf] * 2, overhead=5.0, latency=8.0),
  )
  assert check_bound(problem, 16, "path") == 16


def test_path_pays_the_transfer_where_moving_costs_less():
  # 2 + 3 + 2 + 3 + 2: from device to device and back.
  problem = Problem(
    problems.graph([2.0] * 3, [(0, 1), (1, 2)]),
    problems.cluster([np.inf] * 2, overhead=5.0, latency=3.0),
  )
  assert check_bound(problem, 12, "path") == 12


def test_path_pays_the_transfer_between_ops_of_different_kinds():
  # 3 on the CPU, 100 bytes at 10 B/us and 2 us, 4 on the GPU.
  problem = Problem(
    problems.graph(
      [{"CPU": 3.0}, {"GPU": 4.0}], [(0, 1)], output_bytes=[(100.0,)] * 2
    ),
    problems.cluster(
      [np.inf] * 2, kinds=["GPU", "CPU"], bandwidth=10.0, latency=2.0
    ),
  )
  assert check_bound(problem, 3 + 10 + 2 + 4, "path") == 19


@pytest.mark.parametrize("backward", [False, True])
def test_ops_too_far_from_a_join_or_fork_run_in_series(backward):
  # Ten and ten on one device before (or after) the third, or a transfer of
  # 100 us: no use of the second device.
  edges = [(2, 0), (2, 1)] if backward else [(0, 2), (1, 2)]
  problem = Problem(
    problems.graph([10.0, 10.0, 1.0], edges, output_bytes=[(100.0,)] * 3),
    problems.cluster([np.inf] * 2),
  )
  assert check_bound(problem, 21, "path") == 21


def test_path_adds_what_comes_before_and_after_the_work():
  # 3, then six ops of 4 us on two devices, then 3: transfers take no time.
  problem = Problem(
    problems.graph(
      [3.0] + [4.0] * 6 + [3.0],
      [(0, i) for i in range(1, 7)] + [(i, 7) for i in range(1, 7)],
    ),
    problems.cluster([np.inf] * 2, bandwidth=FREE),
  )
  assert check_bound(problem, 3 + 12 + 3, "path") == 18


def test_work_adds_up_over_stages():
  # Two stages of four ops of 5 us on two devices, a join between them.
  stages = [(i, 4) for i in range(4)] + [(4, i) for i in range(5, 9)]
  problem = Problem(
    problems.graph([5.0] * 4 + [7.0] + [5.0] * 4, stages),
    problems.cluster([np.inf] * 2, bandwidth=FREE),
  )
  assert check_bound(problem, 10 + 7 + 10, "path") == 27


def test_tightened_problem_tells_the_bound_to_all_that_report_it():
  problem = Problem(
    problems.graph([2.0] * 3, [(0, 1), (1, 2)]),
    problems.cluster([np.inf] * 2, overhead=5.0, latency=8.0),
  )
  better = tightened(problem)
  assert problem.lower_bound_us == 6
  assert better.lower_bound_us == pytest.approx(16)
  assert better.simple_bound_us == 6
  (evaluation,) = Simulator(better).evaluate(np.zeros((1, 3), np.int32))
  assert evaluation.lower_bound_us == better.lower_bound_us
  assert tightened(better).lower_bound_us == better.lower_bound_us


@pytest.mark.parametrize("seed", range(6))
def test_never_above_what_a_search_finds_on_layers_of_ops(seed):
  rng = np.random.default_rng(seed)
  width = int(rng.integers(2, 5))
  times = [
    {"GPU": t, "CPU": 5 * t} for t in rng.integers(1, 9, 40 * width) * 1.0
  ]
  edges = {
    (int(rng.integers(max(0, i // width - 2) * width, i // width * width)), i)
    for i in range(width, len(times))
    for _ in range(2)
  }
  problem = Problem(
    problems.graph(
      times,
      sorted(edges),
      output_bytes=[(float(b),) for b in rng.integers(0, 40, len(times))],
    ),
    problems.cluster(
      [np.inf] * 3,
      kinds=["GPU", "GPU", "CPU"],
      overhead=float(rng.choice([0, 1])),
      bandwidth=float(rng.choice([3, 10])),
      latency=float(rng.choice([0, 2])),
    ),
  )
  found = place(problem, "annealing", max_evaluations=4000).evaluation
  bound = lower_bound(problem).us
  assert problem.simple_bound_us <= bound <= found.step_time_us
  assert found.step_time_us < 2 * bound  # so that it says something


def _layered(num_ops, kept_bytes=0.0):
  """A random problem of three kinds, or two, that is slow to prove."""
  rng = np.random.default_rng(num_ops)
  ops = [
    OpSpec(
      f"op_{i}",
      "MatMul",
      {"GPU": float(rng.exponential(20)), "CPU": float(rng.exponential(90))},
      [float(rng.integers(4, 10_000))],
      float(rng.exponential(kept_bytes)),
    )
    for i in range(num_ops)
  ]
  edges = {
    (max(0, i - 1 - int(rng.integers(60))), 0, i)
    for i in range(1, num_ops)
    for _ in range(2)
  }
  graph = build_graph("layered", ops, sorted(edges))
  kinds = ["GPU", "GPU", "CPU"]
  memory = [num_ops * kept_bytes / 3] * 2 + [np.inf]
  memory = memory if kept_bytes else [np.inf] * 3
  return Problem(graph, problems.cluster(memory, kinds=kinds))


@pytest.mark.parametrize("kept_bytes", [0.0, 1e6])
def test_what_is_proved_in_less_time_is_weaker_and_as_true(kept_bytes):
  problem = _layered(8_000, kept_bytes)
  whole = lower_bound(problem)
  for at_most_s in (0.0, 0.1, 1.0):
    bound = lower_bound(problem, at_most_s=at_most_s)
    assert bound.us <= whole.us * (1 + 1e-6)
    assert bound.us >= problem.simple_bound_us
  assert set(lower_bound(problem, at_most_s=0.0).by_argument) == {
    "simple",
    "work",
  }


def test_a_proof_without_a_solver_holds(monkeypatch):
  problem = _layered(300, 1e6)
  whole = lower_bound(problem).by_argument["work"]

  def out_of_time(*args, options, **others):
    assert options["time_limit"] <= 2.0
    return types.SimpleNamespace(x=None)

  monkeypatch.setattr("scipy.optimize.linprog", out_of_time)
  bound = lower_bound(problem, at_most_s=6.0)
  assert bound.us >= problem.simple_bound_us
  assert bound.by_argument["work"] < whole


@pytest.mark.parametrize("budget_s", [0.01, 1.0, 100.0])
def test_a_proof_leaves_most_of_a_budget_to_the_search(budget_s):
  began = time.perf_counter()
  _, left_s = tightened_within(_layered(8_000), budget_s)
  took_s = time.perf_counter() - began
  least_s = max(budget_s / 2, budget_s - took_s)
  assert least_s - 1e-6 <= left_s <= budget_s + 1e-6  # clocks are rounded


def test_problem_that_fits_nowhere_still_has_a_finite_bound():
  problem = Problem(
    problems.graph([5.0], [], persistent_bytes=[10.0]),
    problems.cluster([1.0, 1.0]),
  )
  assert lower_bound(problem).us == 5.0
