"""Problems and placements: what is allowed, groups, and the simple bound."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.testing.packed_graphs import odd_graph
from tfplace.errors import FormatError, PlacementError, ProblemError
from tfplace.graph import (
  Cluster,
  Device,
  Link,
  OpSpec,
  Placement,
  Problem,
  build_graph,
)


def make(ops, edges=(), overhead=(0.0, 0.0), links=True):
  devices = (
    Device("gpu", "GPU", op_overhead_us=overhead[0]),
    Device("cpu", "CPU", op_overhead_us=overhead[1]),
  )
  pair = (Link("gpu", "cpu", 1.0), Link("cpu", "gpu", 1.0)) if links else ()
  return Problem(build_graph("g", ops, edges), Cluster("c", devices, pair))


def op(name, gpu=None, cpu=None, colocation=None):
  times = {"GPU": gpu, "CPU": cpu}
  known = {kind: t for kind, t in times.items() if t is not None}
  return OpSpec(name, "X", known, [8], colocation=colocation)


def test_names_and_files_are_no_problem():
  problem = make([op("a", 1, 1)])
  with pytest.raises(ProblemError, match=r"cluster is 'k80x2'; .* a Cluster"):
    Problem(problem.graph, "k80x2")
  with pytest.raises(ProblemError, match=r"graph is 'g\.json'; .* load_graph"):
    Problem("g.json", problem.cluster)


def test_groups_are_numbered_by_their_first_op():
  problem = make(
    [op("a", 1, 1), op("b", 1, 1, "z"), op("c", 1, 1), op("d", 1, 1, "z")]
  )
  assert problem.group_of.tolist() == [0, 1, 2, 1]
  offsets, ops = problem.group_ops
  assert [ops[a:b].tolist() for a, b in itertools.pairwise(offsets)] == [
    [0],
    [1, 3],
    [2],
  ]


def test_a_group_runs_only_where_all_of_it_runs():
  problem = make([op("a", 1, 1, "z"), op("b", None, 1, "z"), op("c", 1, None)])
  assert problem.group_allowed.tolist() == [[False, True], [True, False]]


def test_bound_is_the_longest_path_where_that_is_larger():
  # a -> b at their fastest kinds: 2 + 3 = 5; work is (2 + 3) / 2.
  problem = make([op("a", 2, 9), op("b", 9, 3)], [(0, 0, 1)])
  assert problem.lower_bound_us == 5


def test_bound_is_the_work_per_device_where_that_is_larger():
  # 4 free ops of 6 us and one of 0: work 24, busy ops 4, two beyond the two
  # devices, smallest overhead 1.5: (24 + 2 * 1.5) / 2 = 13.5.
  ops = [op(str(i), 6, 6) for i in range(4)] + [op("zero", 0, 0)]
  assert make(ops, overhead=(1.5, 7.0)).lower_bound_us == 13.5


@pytest.mark.parametrize(
  ("ops", "words"),
  [
    ([OpSpec("a", "X", {"TPU": 1.0})], "op 'a' .* runs on no device kind"),
    ([op("a", 1, None, "z"), op("b", None, 1, "z")], "colocation group 'z'"),
  ],
)
def test_ops_that_can_run_nowhere_are_named(ops, words):
  with pytest.raises(ProblemError, match=words):
    make(ops)


PLACEMENTS = {
  "shape": ([0], "shape"),
  "range": ([0, 2, 0], "device index 2 of 2"),
  "negative": ([0, -1, 0], "device index -1"),
  "kernel": ([0, 0, 1], "'c' .* cannot run on cpu"),
  "apart": ([0, 1, 0], "'b' is on cpu but 'a' .* is on gpu"),
}


@pytest.mark.parametrize("case", PLACEMENTS)
def test_placements_that_are_not_allowed_say_why(case):
  devices, words = PLACEMENTS[case]
  problem = make([op("a", 1, 1, "z"), op("b", 1, 1, "z"), op("c", 1, None)])
  with pytest.raises(PlacementError, match=words):
    Placement(problem, np.array(devices))


def test_a_transfer_without_a_link_is_refused():
  problem = make([op("a", 1, 1), op("b", 1, 1)], [(0, 0, 1)], links=False)
  with pytest.raises(PlacementError, match="'a' on gpu feeds 'b' on cpu"):
    Placement(problem, np.array([0, 1]))
  assert Placement(problem, np.array([1, 1])).assignments["a"] == "cpu"


# Compiled code would follow these out of bounds, or add up nonsense.
WRONG = {
  "edge from nowhere": ("edge_src", [0, 0, 3], "no op 3"),
  "edge to nowhere": ("edge_dst", [1, 2, -1], "no op -1"),
  "no such output": ("edge_output", [2, -1, 0], "output 2 of op 'a/ä'"),
  "output below control": ("edge_output", [1, -2, 0], "output -2"),
  "edges of two lengths": ("edge_output", [1, -1], "edge_output is int32"),
  "no such group": ("colocation", [0, 0, 1], "'c': colocation: 1"),
  "no such layer": ("layer", [0, -2, 0], "'b': layer: -2"),
  "counts that fall": ("output_offsets", [0, 2, 1, 3], "add up"),
  "negative size": ("temp_bytes", [0, -1, 0], "'b': temp_bytes: -1 is neg"),
  "infinite size": ("output_bytes", [8, np.inf, 0], r"'a/ä': output_bytes\[1"),
  "cycle": ("edge_src", [0, 2, 2], "cycle: 'c' -> 'c'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_graph_of_wrong_values_is_refused_by_element(case):
  field, values, words = WRONG[case]
  graph = odd_graph()
  array = np.array(values, getattr(graph, field).dtype)
  with pytest.raises(FormatError, match=words):
    dataclasses.replace(graph, **{field: array})


@pytest.mark.parametrize(
  "changes, words",
  [
    ({"names": ("a", "b", "a")}, r"ops\[2\]: duplicate name 'a'"),
    ({"names": ("a", "", "c")}, "expected a name, found ''"),
    ({"time_us": {"GPU": np.full(3, -1.0)}}, r"time_us\['GPU'\]: -1 is neg"),
    ({"time_us": {"GPU": np.zeros(3, np.float32)}}, "is float32"),
    ({"peak_us": {"GPU": np.full(3, np.nan)}}, "nan is not finite"),
  ],
)
def test_a_graph_of_wrong_names_or_times_is_refused(changes, words):
  with pytest.raises(FormatError, match=words):
    dataclasses.replace(odd_graph(), **changes)


@pytest.mark.parametrize("edge", [("a", 0, "b"), (0, 1), (0, 0, None)])
def test_an_edge_that_is_not_three_integers_is_refused(edge):
  ops = [OpSpec(name, "Op", {"GPU": 1.0}, [1.0]) for name in "ab"]
  with pytest.raises(FormatError, match="three integers") as error:
    build_graph("g", ops, [(0, 0, 1), edge])
  assert str(edge) in str(error.value)


def test_groups_of_a_problem_replace_those_of_its_graph():
  times = [{"GPU": 1.0, "CPU": 3.0}, {"CPU": 2.0}, {"GPU": 4.0, "CPU": 5.0}]
  ops = [OpSpec(f"op{i}", "MatMul", t, [8.0]) for i, t in enumerate(times)]
  problem = make(ops, [(0, 0, 1), (1, 0, 2)])
  made = dataclasses.replace(problem, groups=np.array([0, 1, 0]))
  expected = Problem(
    build_graph(
      "g",
      [
        OpSpec(op.name, op.type, op.time_us, [8.0], colocation=group)
        for op, group in zip(ops, "aba", strict=True)
      ],
      [(0, 0, 1), (1, 0, 2)],
    ),
    problem.cluster,
  )
  for name in ("group_of", "group_allowed", "earliest_start_us", "time_us"):
    np.testing.assert_array_equal(getattr(made, name), getattr(expected, name))
  with pytest.raises(PlacementError, match="its colocation group '0' is on"):
    Placement(made, [0, 1, 1])
  # The first problem is as it was.
  assert (problem.group_of == [0, 1, 2]).all()
  assert problem.graph.colocation_names == ()
  assert not made.graph.colocation.flags.writeable


@pytest.mark.parametrize(
  "devices",
  [
    [2**32, 0],
    np.array([2**64 - 1, 0], np.uint64),
    [10**30, 0],
    np.zeros(2),
    ["0", "0"],
    [True, False],
    [None, 0],
    [[0], [0, 1]],
    "00",
  ],
)
def test_devices_that_are_no_indices_are_refused(devices):
  ops = [OpSpec(name, "X", {"CPU": 1.0}) for name in "ab"]
  graph = build_graph("pair", ops, [])
  problem = Problem(graph, Cluster("c", (Device("d", "CPU"),)))
  with pytest.raises(PlacementError):
    Placement(problem, devices)
  for dtype in (np.int8, np.uint64, np.int64):
    placement = Placement(problem, np.zeros(2, dtype))
    assert placement.devices.dtype == np.int32
  assert Placement(problem, [0, 0]).devices.tolist() == [0, 0]


DERIVED = (
  *("time_us", "allowed", "group_of", "group_allowed", "fastest_us"),
  *("earliest_start_us", "upward_ranks_us", "lower_bound_us"),
)


@pytest.mark.parametrize("derived_first", [True, False])
def test_a_changed_problem_is_as_a_new_one(derived_first):
  problem = make(
    [op("a", 1, 2), op("b", 4, 3, "z"), op("c", 1, 1, "z")], [(0, 0, 1)]
  )
  if derived_first:
    for name in (*DERIVED, "allowed_sets", "starts"):
      getattr(problem, name)
  off_cpu = np.array([True, False, False])
  for changed, fields in (
    (problem.in_order("rank"), {"order": "rank"}),
    (problem.with_bound(9.0), {"proven_us": 9.0}),
    (problem.without_cpus(off_cpu), {"off_cpu": off_cpu}),
    (
      problem.without_cpus(off_cpu).in_order("rank"),
      {"off_cpu": off_cpu, "order": "rank"},
    ),
  ):
    new = dataclasses.replace(problem, **fields)
    for name in DERIVED:
      found, wanted = getattr(changed, name), getattr(new, name)
      assert np.array_equal(found, wanted, equal_nan=True), name
    for found, wanted in zip(
      changed.allowed_sets, new.allowed_sets, strict=True
    ):
      assert found.tolist() == wanted.tolist()
    assert changed.priorities().tolist() == new.priorities().tolist()
  assert problem.order == "arrival" and problem.off_cpu is None
  with pytest.raises(ProblemError, match="order is 'newest'"):
    problem.in_order("newest")
