"""A placement to start from, also one of another graph or cluster."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.testing import problems
from tfplace import placers
from tfplace.errors import TfplaceError
from tfplace.graph import Link, OpSpec, Placement, Problem, build_graph
from tfplace.graph.placement import check_devices
from tfplace.placers.replan import carried_over
from tfplace.simulate import Simulator


@pytest.mark.parametrize("strategy", ["auto", "annealing"])
@pytest.mark.parametrize("seed", range(2))
def test_the_result_is_never_worse_than_the_start(strategy, seed):
  problem = problems.random_problem(seed)
  known = placers.place(problem, "auto", budget_s=9, max_evaluations=3000)
  # Ten evaluations alone do not find what 3,000 have found.
  found = placers.place(
    problem,
    strategy,
    budget_s=9,
    seed=seed,
    max_evaluations=10,
    init_placement=known.placement,
  )
  assert found.evaluation.step_time_us <= known.evaluation.step_time_us


@pytest.mark.parametrize("strategy", ["heft", "single", "gdp", "brkga"])
def test_who_does_not_search_from_a_start_refuses_one(strategy):
  problem = problems.random_problem(1)
  start = placers.place(problem, "single").placement
  with pytest.raises(TfplaceError, match="annealing, ordered and auto can"):
    placers.place(problem, strategy, init_placement=start)


def test_something_else_is_refused():
  problem = problems.random_problem(1)
  start = placers.place(problem, "single").placement
  with pytest.raises(TfplaceError, match="init_placement names none of the"):
    placers.place(problem, "auto", init_placement={"no such op": "d0"})
  with pytest.raises(TfplaceError, match="must be a Placement"):
    placers.place(problem, "auto", init_placement=start.devices)
  whole_file = {"order": "arrival", "assignments": start.assignments}
  with pytest.raises(
    TfplaceError, match=r"'assignments' on .*names of devices"
  ):
    placers.place(problem, "auto", init_placement=whole_file)


def without(cluster, name):
  """The cluster that is left when a device is gone."""
  return dataclasses.replace(
    cluster,
    devices=tuple(d for d in cluster.devices if d.name != name),
    links=tuple(k for k in cluster.links if name not in (k.src, k.dst)),
  )


def linked(cluster):
  names = [device.name for device in cluster.devices]
  links = [Link(a, b, 1.0) for a, b in itertools.permutations(names, 2)]
  return dataclasses.replace(cluster, links=tuple(links))


def independent(times, devices, memory=np.inf):
  graph = problems.graph(times, [])
  return Problem(graph, problems.cluster([memory] * devices))


@pytest.mark.parametrize("seed", range(8))
def test_what_is_still_there_stays(seed):
  problem = problems.random_problem(seed)
  old = placers.place(problem, "auto", max_evaluations=100).placement
  found = carried_over(problem, old.assignments)
  np.testing.assert_array_equal(found, old.devices[None])


@pytest.mark.parametrize("seed", range(8))
def test_guesses_are_allowed_when_a_device_is_gone(seed):
  problem = problems.random_problem(seed)
  cluster = problem.cluster
  if cluster.num_devices == 1:
    cluster = dataclasses.replace(cluster, name="the same")
  else:
    cluster = without(cluster, cluster.devices[-1].name)
  old = placers.place(problem, "auto", max_evaluations=100).placement
  changed = Problem(problem.graph, linked(cluster))
  for guess in carried_over(changed, old.assignments):
    check_devices(changed, guess)
    kept = guess[old.devices < cluster.num_devices]
    before = old.devices[old.devices < cluster.num_devices]
    np.testing.assert_array_equal(kept, before)


def test_a_lost_devices_work_is_cut_where_two_have_room():
  # d0 and d1 have 2 each, d2 had 4 times 1: 4 and 4 when cut in two.
  old = independent([2, 2, 1, 1, 1, 1], 3)
  placement = Placement(old, [0, 1, 2, 2, 2, 2])
  changed = Problem(old.graph, without(old.cluster, "d2"))
  guesses = carried_over(changed, placement.assignments)
  steps = Simulator(changed).evaluate(guesses)
  assert sorted(s.step_time_us for s in steps) == [4.0, 6.0]


def test_a_new_op_is_beside_what_it_exchanges_most_with():
  # o2 reads 10 bytes of o0 and 90 of o1; o3 knows o2 alone.
  graph = problems.graph(
    [1, 1, 1, 1], [(0, 2), (1, 2), (2, 3)], output_bytes=[[10], [90], [1], [0]]
  )
  problem = Problem(graph, problems.cluster([np.inf] * 2))
  (guess,) = carried_over(problem, {"o0": "d0", "o1": "d1", "gone": "d0"})
  np.testing.assert_array_equal(guess, [0, 1, 1, 1])


def test_a_renamed_heavy_op_leaves_the_cpu_if_ops_are_new():
  # o1 was light and on the CPU, d2; its name now belongs to a heavy op.
  times = {"GPU": 1.0, "CPU": 100.0}
  ops = [OpSpec(f"o{i}", "Op", times, (1.0,)) for i in range(3)]
  cluster = problems.cluster([np.inf] * 3, kinds=["GPU", "GPU", "CPU"])
  old = {"o0": "d0", "o1": "d2", "o2": "d1"}
  same = Problem(build_graph("same", ops, [(0, 0, 1)]), cluster)
  np.testing.assert_array_equal(carried_over(same, old), [[0, 2, 1]])
  ops.append(OpSpec("o3", "Op", times, (1.0,)))
  more = Problem(build_graph("more", ops, [(0, 0, 1), (2, 0, 3)]), cluster)
  found = carried_over(more, old)
  np.testing.assert_array_equal(found, [[0, 2, 1, 1], [0, 0, 1, 1]])
