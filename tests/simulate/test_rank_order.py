"""Ops that go by rank: the engine, the reference, and chains of control edges
in order of arrival agree; what it changes is computed by hand.
"""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from tests.testing import random_problems as cases
from tests.testing.equals_reference import assert_equal
from tests.testing.reference import Reference
from tests.testing.small_steps_by_hand import cluster_of, op, starts
from tests.testing.split_steps import two_stages
from tfplace.graph.graph_edits import subgraph
from tfplace.graph.op_graph import build_graph
from tfplace.graph.order import ARRIVAL, RANK, ranks
from tfplace.graph.paths import upward_ranks
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.simulate import Simulator, engine


def ranked_case(seed):
  """A random problem in order of rank, mostly of a split step."""
  rng = np.random.default_rng(seed)
  make = cases.costly_case if seed % 2 else cases.random_case
  problem, devices = make(rng)
  graph = problem.graph
  if rng.random() < 0.8:
    microbatch = rng.integers(-1, 3, graph.num_ops).astype(np.int32)
    graph = dataclasses.replace(graph, microbatch=microbatch)
  return Problem(graph, problem.cluster, order=RANK), devices


def chained(problem, devices, order):
  """The graph in order of arrival, each device's ops chained in `order`."""
  graph = problem.graph
  there = set(
    zip(
      graph.edge_src.tolist(),
      graph.edge_output.tolist(),
      graph.edge_dst.tolist(),
      strict=True,
    )
  )
  added = []
  for device in range(problem.cluster.num_devices):
    chain = [i for i in order if devices[i] == device]
    for edge in itertools.pairwise(chain):
      if (edge[0], -1, edge[1]) not in there:
        added.append((edge[0], -1, edge[1]))
  src, output, dst = np.array(added, np.int32).reshape(-1, 3).T
  graph = dataclasses.replace(
    graph,
    edge_src=np.concatenate((graph.edge_src, src)),
    edge_output=np.concatenate((graph.edge_output, output)),
    edge_dst=np.concatenate((graph.edge_dst, dst)),
  )
  return Problem(graph, problem.cluster)


def test_a_placement_is_simulated_in_its_own_order():
  problem, devices = next(
    case
    for case in map(ranked_case, itertools.count())
    if Simulator(case[0]).schedule(case[1]).step_time_us
    != Simulator(case[0].in_order(ARRIVAL)).schedule(case[1]).step_time_us
  )
  both = [problem, problem.in_order(ARRIVAL)]
  placements = [Placement(one, devices) for one in (*both, problem)]
  expected = [Simulator(p.problem).evaluate([p])[0] for p in placements]
  assert expected[0].step_time_us != expected[1].step_time_us
  for one in both:
    simulator = Simulator(one)
    assert simulator.evaluate(placements) == expected
    for placement, evaluation in zip(placements, expected, strict=True):
      schedule = simulator.schedule(placement)
      assert schedule.step_time_us == evaluation.step_time_us


@pytest.mark.parametrize("block", range(2))
def test_by_rank_is_by_arrival_with_a_chain_of_control_edges(block):
  differs = collections.Counter()
  for seed in range(250 * block, 250 * (block + 1)):
    problem, devices = ranked_case(seed)
    simulator = Simulator(problem)
    schedule = simulator.schedule(devices)
    reference = Reference(problem, devices.tolist())
    reference.run()
    other = chained(problem, devices, list(reference.start))
    chain = Simulator(other).schedule(devices)
    assert schedule.op_start_us.tolist() == chain.op_start_us.tolist(), seed
    assert schedule.step_time_us == chain.step_time_us, seed
    np.testing.assert_allclose(
      schedule.peak_memory_bytes, chain.peak_memory_bytes, rtol=1e-9
    )
    arrival = Simulator(problem.in_order("arrival")).schedule(devices)
    kind = "costly" if problem.cluster.has_message_costs else "free"
    differs[kind] += arrival.step_time_us != schedule.step_time_us
  assert min(differs["costly"], differs["free"]) >= 3, differs


@pytest.mark.parametrize("block", range(2))
def test_the_engine_equals_the_reference_by_rank(block):
  for seed in range(400 * block, 400 * (block + 1)):
    problem, devices = ranked_case(seed)
    try:
      assert_equal(problem, devices)
    except AssertionError as error:
      raise AssertionError(f"seed {seed}: {error}") from error


def test_renumbered_ops_keep_their_ranks():
  for seed in range(200):
    problem, devices = ranked_case(seed)
    order = np.random.default_rng(seed).permutation(problem.graph.num_ops)
    other = dataclasses.replace(problem, graph=subgraph(problem.graph, order))
    tables = engine.pack(other, order)
    found = Simulator(other).run(devices[order], tables=tables).step_time_us
    assert found == Simulator(problem).run(devices).step_time_us, seed


@pytest.mark.parametrize("first", ["arrival", "rank"])
def test_tables_of_one_order_serve_the_other(first):
  for seed in range(30):
    problem, devices = ranked_case(seed)
    problem = problem.in_order(first)
    Simulator(problem).run(devices)
    for order in ("rank", "arrival"):
      other = problem.in_order(order)
      fresh = dataclasses.replace(other)
      assert "memo" not in fresh.__dict__
      found, wanted = Simulator(other).tables, Simulator(fresh).tables
      assert found.is_ranked == wanted.is_ranked == (order == "rank")
      assert found.op_key.tolist() == wanted.op_key.tolist()
      assert found.sources.tolist() == wanted.sources.tolist()
      got = Simulator(other).run(devices).step_time_us
      assert got == Simulator(fresh).run(devices).step_time_us, seed


def test_a_pipeline_by_hand():
  problem, devices = two_stages(), np.array([0, 1, 1, 0] * 2 + [0])
  arrival = Simulator(problem).schedule(devices)
  # The second forward pass is ready at 2, before the first backward pass at 3.
  assert arrival.op_start_us.tolist() == [0, 1, 5, 6, 1, 3, 6, 9, 12]
  assert arrival.step_time_us == 13
  assert arrival.peak_memory_bytes.tolist() == [16 + 5, 16 + 4]
  by_rank = Simulator(problem.in_order(RANK)).schedule(devices)
  # A microbatch that was begun is finished first (1F1B).
  assert by_rank.op_start_us.tolist() == [0, 1, 3, 4, 1, 4, 6, 7, 10]
  assert by_rank.step_time_us == 11
  assert by_rank.peak_memory_bytes.tolist() == [16 + 5, 8 + 4]


def test_ranks_by_hand():
  # A read, two microbatches of a short and a long op, an update.
  ops = [
    op("update", 1.0),
    dataclasses.replace(op("1/a", 1.0), microbatch=1),
    dataclasses.replace(op("0/short", 1.0), microbatch=0),
    dataclasses.replace(op("0/long", 5.0), microbatch=0),
    op("read", 0.0),
    op("beside", 9.0),
  ]
  edges = [(4, -1, 1), (4, -1, 2), (1, -1, 0), (2, -1, 0), (3, -1, 0)]
  graph = build_graph("g", ops, edges)
  # read; 0/long, 0/short; 1/a; beside (9 to the end), update.
  wanted = [5, 3, 2, 1, 0, 4]
  assert (
    ranks(graph, upward_ranks(graph, graph.time_us["GPU"])).tolist() == wanted
  )


def replicas(prepare=("StridedSlice", (4.0,))):
  """Two replicas of 10 us, and an op that prepares each one's part of a batch
  of 8 bytes on the first device, from a constant.
  """
  kind, outputs = prepare
  ops = [
    op("batch", 0.0, (8.0,)),
    op("weight", 0.0, (0.0,), persistent=8.0),
    op("update", 1.0),
  ]
  edges = []
  for m in range(2):
    at = len(ops)
    ops += [
      dataclasses.replace(o, microbatch=m)
      for o in (
        op(f"{m}/begin", 0.0, (0.0,)),
        dataclasses.replace(op(f"{m}/part", 1.0, outputs), type=kind),
        op(f"{m}/layer", 10.0, (0.0,)),
      )
    ]
    edges += [(0, 0, at + 1), (at, 0, at + 1), (at + 1, 0, at + 2)]
    edges += [(1, 0, at + 2), (at + 2, 0, 2)]
  devices = np.array([0, 0, 0, 0, 0, 0, 0, 0, 1])
  return ops, edges, devices


def layer_starts(ops, edges, devices):
  problem = Problem(build_graph("g", ops, edges), cluster_of(2), order=RANK)
  start = starts(Simulator(problem).schedule(devices))
  return start["0/layer"], start["1/layer"]


@pytest.mark.parametrize("kind", ["StridedSlice", "Reshape", "Cast"])
def test_no_replica_waits_for_its_part_of_the_batch(kind):
  # Both parts are taken at once; the second arrives 4 us later.
  assert layer_starts(*replicas((kind, (4.0,)))) == (2, 6)


def test_more_bytes_than_are_read_wait_for_their_turn():
  # The second part starts after the first layer, at 11.
  assert layer_starts(*replicas(("OneHot", (32.0,)))) == (1, 12 + 32)


def test_parts_after_an_earlier_microbatch_wait_for_their_turn():
  ops, edges, devices = replicas()
  edges.append((5, -1, 7))  # One microbatch in flight.
  assert layer_starts(ops, edges, devices) == (1, 12 + 4)
  graph = build_graph("g", ops, edges)
  rank = ranks(graph, upward_ranks(graph, graph.time_us["GPU"]))
  assert rank[5] < rank[7]


def test_copies_of_variables_come_before_the_microbatches():
  ops, edges, devices = replicas()
  ops.append(op("copy", 1.0, (0.0,)))
  edges = [(9 if e == (1, 0, 8) else e[0], *e[1:]) for e in edges]
  edges.append((1, 0, 9))
  # Both parts, the copy at 2, and then the layers.
  assert layer_starts(ops, edges, np.append(devices, 0)) == (3, 6)
