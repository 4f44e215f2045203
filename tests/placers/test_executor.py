"""`ExecutorEvaluator`: batches over thread and process pools."""

import concurrent.futures
import multiprocessing

import numpy as np
import pytest

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.placement import Placement
from tfplace.core.problem import Problem
from tfplace.errors import PlacementError
from tfplace.placers.parallel.evaluator import ExecutorEvaluator
from tfplace.simulate import Simulator


def chain(num_ops=6):
  """A chain of ops of 1 us and 1 byte on two devices."""
  ops = [OpSpec(f"o{i}", "Op", {"GPU": 1.0}, [1.0]) for i in range(num_ops)]
  edges = [(i, 0, i + 1) for i in range(num_ops - 1)]
  devices = (Device("d0", "GPU"), Device("d1", "GPU"))
  links = (Link("d0", "d1", 1.0), Link("d1", "d0", 1.0))
  return Problem(build_graph("g", ops, edges), Cluster("c", devices, links))


def process_pool():
  context = multiprocessing.get_context("spawn")
  return concurrent.futures.ProcessPoolExecutor(2, context)


@pytest.mark.parametrize(
  "make_executor",
  [lambda: concurrent.futures.ThreadPoolExecutor(3), process_pool],
)
def test_parts_come_back_in_order(make_executor):
  problem = chain()
  rows = np.random.default_rng(0).integers(0, 2, (10, 6), np.int32)
  expected = Simulator(problem).evaluate(rows)
  with make_executor() as executor:
    evaluator = ExecutorEvaluator(Simulator(problem), executor, 4)
    assert evaluator.evaluate(rows) == expected
    placements = [Placement(problem, row) for row in rows]
    assert evaluator.evaluate(placements) == expected
  # Each change of device adds 1 us to the chain's 6.
  moves = (np.diff(rows, axis=1) != 0).sum(axis=1)
  assert [e.step_time_us for e in expected] == (6.0 + moves).tolist()


def test_fewer_placements_than_parts():
  problem = chain()
  with concurrent.futures.ThreadPoolExecutor(1) as executor:
    evaluator = ExecutorEvaluator(Simulator(problem), executor, 8)
    assert evaluator.evaluate(np.zeros((0, 6), np.int32)) == []
    assert evaluator.evaluate([]) == []
    assert len(evaluator.evaluate(np.zeros((2, 6), np.int32))) == 2


def test_an_error_in_a_worker_reaches_the_caller():
  with process_pool() as executor:
    evaluator = ExecutorEvaluator(Simulator(chain()), executor, 2)
    with pytest.raises(PlacementError, match=r"'o0'.*device index 2 of 2"):
      evaluator.evaluate(np.full((3, 6), 2, np.int32))
