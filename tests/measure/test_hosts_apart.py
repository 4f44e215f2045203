"""Two machines: the best placement changes with the cable between them.

The two-branch step takes a few milliseconds for each branch. Over a short
cable half of that is saved by splitting it; over one of 10 ms each way, going
there and back takes longer than all of the computing.
"""

import numpy as np
import pytest
import tensorflow as tf
from served_workers import serving, write_hosts
from test_serving import reaches
from two_machines import ADDRESSES, Unavailable, two_machines

from tfplace import placers
from tfplace.core.problem import Problem
from tfplace.extraction import trace_graph_def
from tfplace.measure import open_cluster
from tfplace.plan import sources

DELAY_S = 0.01
SIDE, LAYERS = 192, 12  # of a branch: about 5 ms on one core


@pytest.fixture(scope="module")
def machines():
  try:
    with two_machines() as found:
      yield found
  except Unavailable as why:
    pytest.skip(f"no two machines here: {why}")


@pytest.fixture(scope="module")
def hosts_path(machines, tmp_path_factory):
  binds = [f"{address}:0" for address in ADDRESSES]
  prefixes = [machines.command_prefix(i) for i in (0, 1)]
  with serving(binds, prefixes) as (one, other):
    addresses = {"one": one.address, "other": other.address}
    yield write_hosts(tmp_path_factory.mktemp("apart") / "h.json", addresses)


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
  """A step of two chains of products on one input, joined by a sum."""
  graph = tf.Graph()
  with graph.as_default():
    x = tf.compat.v1.placeholder(tf.float32, (SIDE, SIDE), name="x")
    ends = []
    for branch in "ab":
      y = x
      for layer in range(LAYERS):
        y = tf.matmul(y, x, name=f"{branch}{layer}")
      ends.append(tf.reduce_mean(y, name=f"{branch}_mean"))
    tf.add(*ends, name="sum")
  path = tmp_path_factory.mktemp("model") / "branches.pb"
  path.write_bytes(graph.as_graph_def().SerializeToString())
  return trace_graph_def(str(path))


def by_branch(problem):
  """[num_ops]: branch b on the second worker."""
  b = [name.startswith("b") for name in problem.graph.names]
  return np.array(b, np.int32)


def planned_and_measured(machines, hosts_path, traced, quick_links):
  """The live cluster, the placement found, and real steps.

  The steps are of all on one worker, and of the branches apart; last, what it
  takes to have a step begin and end on the second worker.
  """
  with machines.on(0), quick_links(), open_cluster(hosts_path) as live:
    graph = sources.op_graph(traced, live.cluster)
    problem = live.profiled(Problem(graph, live.cluster), traced, steps=5)
    found = placers.place(problem, "annealing", budget_s=0.5, seed=0)
    rows = np.stack([0 * by_branch(problem), by_branch(problem)])
    one, apart = live.harness(problem, traced, steps=5).evaluate(rows)
    starting_us = live.runtime.starting_us(live.cluster.devices[1].name)
  steps_us = one.step_time_us, apart.step_time_us
  return live.cluster, found.placement, *steps_us, starting_us


def devices_of(placement, branch):
  names = placement.problem.graph.names
  products = [f"{branch}{layer}" for layer in range(LAYERS)]
  return {int(placement.devices[names.index(name)]) for name in products}


def test_the_best_placement_changes_with_the_measured_link(
  machines, hosts_path, branches, quick_links
):
  short = planned_and_measured(machines, hosts_path, branches, quick_links)
  try:
    machines.lengthen(DELAY_S)
  except Unavailable as why:
    pytest.skip(f"no delay here: {why}")
  long = planned_and_measured(machines, hosts_path, branches, quick_links)

  cluster, placement, one_us, apart_us, _ = short
  assert all(link.latency_us < 5e3 for link in cluster.links)
  a, b = (devices_of(placement, branch) for branch in "ab")
  assert len(a) == len(b) == 1
  assert a != b
  short_ratio = apart_us / one_us

  cluster, placement, one_us, apart_us, starting_us = long
  for link in cluster.links:
    assert DELAY_S * 1e6 <= link.latency_us < 4 * DELAY_S * 1e6
    assert link.channel is None  # machines have one for each way
  a, b = (devices_of(placement, branch) for branch in "ab")
  assert a == b
  assert len(a) == 1
  assert 2 * DELAY_S * 1e6 <= starting_us < 8 * DELAY_S * 1e6
  # It was right: there and back is two delays, and more than the branch.
  assert apart_us > one_us + 2 * DELAY_S * 1e6 - 1e4
  assert apart_us / one_us > 1.5 * short_ratio


def test_workers_take_connections_to_their_own_address_only(
  machines, hosts_path
):
  with machines.on(0), serving(("127.0.0.1:0",), ((),)) as (inside,):
    assert reaches("127.0.0.1", inside.port)
    assert not reaches(ADDRESSES[0], inside.port)
    with machines.on(1):
      assert not reaches(ADDRESSES[0], inside.port)
