"""Placeto's constant features and its looks at placements, by hand."""

import numpy as np
import pytest

import tfplace
from tests.testing.policy_problems import gpus, problem_of, random_graph
from tfplace import Simulator
from tfplace.learned.decisions import Decisions, group_decisions
from tfplace.learned.placeto import features
from tfplace.learned.placeto.features import Observer, random_choices


def diamond():
  """a -> b, c -> d, and e alone; two GPUs and a CPU; d not on a CPU."""
  ops = [
    tfplace.OpSpec("a", "Relu", {"GPU": 2.0, "CPU": 8.0}, [4000]),
    tfplace.OpSpec("b", "Relu", {"GPU": 6.0, "CPU": 9.0}, [8000]),
    tfplace.OpSpec("c", "Relu", {"GPU": 3.0, "CPU": 3.0}, [2000]),
    tfplace.OpSpec("d", "Relu", {"GPU": 4.0}, [1000]),
    tfplace.OpSpec("e", "Relu", {"GPU": 1.0, "CPU": 1.0}, [0]),
  ]
  edges = [(0, 0, 1), (0, 0, 2), (1, 0, 3), (2, 0, 3)]
  problem = problem_of(
    tfplace.build_graph("diamond", ops, edges), gpus(2, cpu=True)
  )
  return Decisions(problem, np.arange(5, dtype=np.int32))


def test_numbers_are_divided_by_the_maximum():
  found = features.extract(diamond())
  np.testing.assert_allclose(
    found.node,
    [[2 / 6, 0.5], [1, 1], [0.5, 0.25], [4 / 6, 0.125], [1 / 6, 0]],
    rtol=1e-6,
  )
  # On the CPU b takes longest, 9; d cannot run there.
  np.testing.assert_allclose(
    found.on_device[:, 2], [8 / 9, 1, 3 / 9, 0, 1 / 9], rtol=1e-6
  )
  np.testing.assert_allclose(
    found.slower[:, 2], np.log([8 / 2, 9 / 6, 1, 1, 1]), atol=1e-6
  )
  assert (found.slower[:, :2] == 0).all()
  assert found.allowed[:, 2].tolist() == [True, True, True, False, True]


def test_ancestors_are_all_groups_with_a_path():
  found = features.extract(diamond())
  assert found.feeds[1].tolist() == [1, 0, 0, 0, 0]
  assert found.ancestors[3].tolist() == [1, 1, 1, 0, 0]
  assert not found.ancestors[0].any() and not found.ancestors[4].any()


def test_ancestors_of_cyclic_groups_follow_the_visiting_order():
  """a and d as one group feed b and c and are fed by them."""
  decisions = Decisions(diamond().problem, np.array([0, 1, 2, 0, 3], np.int32))
  found = features.extract(decisions)
  assert found.feeds[0].tolist() == [0, 1, 1, 0]
  assert found.ancestors.tolist() == [
    [0, 0, 0, 0],
    [1, 0, 0, 0],
    [1, 0, 0, 0],
    [0, 0, 0, 0],
  ]


@pytest.mark.parametrize("seed", range(5))
def test_ancestors_equal_a_search_through_the_graph(seed):
  problem = problem_of(random_graph(40, seed), gpus(2))
  found = features.extract(group_decisions(problem))
  for group in range(40):
    reached, stack = set(), [group]
    while stack:
      for feeder in np.flatnonzero(found.feeds[stack.pop()]):
        if feeder not in reached:
          reached.add(int(feeder))
          stack.append(feeder)
    assert set(np.flatnonzero(found.ancestors[group])) == reached


def test_a_look_tells_step_times_and_starts():
  # All on GPU 0, with 1 us between ops: a 0-2, e 3-4 (ready at 0 as well, the
  # second in order), b 5-11, c 12-15, d 16-20.
  look = Observer(*_with_simulator(diamond())).look(np.zeros((1, 5), np.int32))
  assert look.step_us.tolist() == [20.0]
  np.testing.assert_allclose(
    look.start, [[0, 5 / 20, 12 / 20, 16 / 20, 3 / 20]], rtol=1e-6
  )
  assert look.excess_gb.tolist() == [0.0]


def test_a_group_starts_with_its_first_op_that_takes_time():
  ops = [
    tfplace.OpSpec("variable", "VarHandleOp", {"GPU": 0.0}, [1]),
    tfplace.OpSpec("slow", "Relu", {"GPU": 9.0}, [1]),
    tfplace.OpSpec("reader", "Relu", {"GPU": 1.0}, [1]),
  ]
  graph = tfplace.build_graph("g", ops, [(0, 0, 2), (1, 0, 2)])
  decisions = Decisions(
    problem_of(graph, gpus(1)), np.array([1, 0, 1], np.int32)
  )
  look = Observer(*_with_simulator(decisions)).look(np.zeros((1, 2), np.int32))
  # slow 0-9, 1 us of overhead, reader 10-11.
  np.testing.assert_allclose(look.start, [[0, 10 / 11]], rtol=1e-6)


def test_excess_is_that_of_the_fullest_device():
  ops = [tfplace.OpSpec(f"v{i}", "Relu", {"GPU": 1.0}, [], 3e9) for i in (0, 1)]
  problem = problem_of(
    tfplace.build_graph("g", ops, []), gpus(2, memory_bytes=4e9)
  )
  decisions = Decisions(problem, np.arange(2, dtype=np.int32))
  look = Observer(*_with_simulator(decisions)).look(
    np.array([[0, 0], [0, 1]], np.int32)
  )
  np.testing.assert_allclose(look.excess_gb, [2.0, 0.0])
  assert look.feasible_us[0] == np.inf and look.feasible_us[1] == 1.0


def test_an_evaluator_without_starts_ignores_communication():
  decisions, simulator = _with_simulator(diamond())

  class Measured:
    problem = decisions.problem

    def evaluate(self, placements):
      return simulator.evaluate(placements)

  choices = np.array([[0, 1, 0, 1, 0]], np.int32)
  look = Observer(decisions, Measured()).look(choices)
  assert look.step_us == Observer(decisions, simulator).look(choices).step_us
  # a 0-2, b and c from 2, d from 8; e at 0.
  np.testing.assert_allclose(
    look.start, np.array([[0, 2, 2, 8, 0]]) / look.step_us, rtol=1e-6
  )


def test_random_choices_are_allowed_and_use_every_device():
  allowed = np.array([[True, True, False], [False, False, True]])
  found = random_choices(allowed, 200, np.random.default_rng(0))
  assert set(found[:, 0]) == {0, 1} and set(found[:, 1]) == {2}


def _with_simulator(decisions):
  return decisions, Simulator(decisions.problem)
