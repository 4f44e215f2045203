"""Two machines: the best placement changes with the cable between them.

The two-branch step takes a few milliseconds for each branch. Over a short
cable half of that is saved by splitting it; over one of 10 ms each way, going
there and back takes longer than all of the computing.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.patience import patiently
from tests.testing.ports import reaches
from tests.testing.served_workers import serving, write_hosts
from tests.testing.slow import SLOW
from tests.testing.two_machines import ADDRESSES, Unavailable, two_machines
from tfplace import placers
from tfplace.core.cluster import Link
from tfplace.core.problem import Problem
from tfplace.extraction import trace_graph_def
from tfplace.measure import open_cluster
from tfplace.plan import sources

pytestmark = SLOW
DELAY_US = 10e3  # each way
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


@dataclasses.dataclass(frozen=True)
class Found:
  """Result of a run over the cable; fastest steps in microseconds.

  Attributes:
    links: of the live cluster.
    branches: the devices of each branch in the placement that was found.
    one_us: the step with every op on one worker.
    apart_us: the step with a branch on each.
    starting_us: for a step to begin and end on the second worker.
  """

  links: tuple[Link, ...]
  branches: tuple[set[int], set[int]]
  one_us: float
  apart_us: float
  starting_us: float


def planned_and_measured(machines, hosts_path, traced, quick_links):
  with machines.on(0), quick_links(), open_cluster(hosts_path) as live:
    graph = sources.op_graph(traced, live.cluster)
    problem = live.profiled(Problem(graph, live.cluster), traced, steps=5)
    placement = placers.place(
      problem, "annealing", budget_s=0.5, seed=0
    ).placement
    rows = np.stack([0 * by_branch(problem), by_branch(problem)])
    steps = live.harness(problem, traced, steps=10).evaluate(rows)
    return Found(
      live.cluster.links,
      (devices_of(placement, "a"), devices_of(placement, "b")),
      # Other load of the host only adds to a step.
      *(min(step.extra["step_times_us"]) for step in steps),
      live.runtime.starting_us(live.cluster.devices[1].name),
    )


def devices_of(placement, branch):
  names = placement.problem.graph.names
  products = [f"{branch}{layer}" for layer in range(LAYERS)]
  return {int(placement.devices[names.index(name)]) for name in products}


def shares_the_work(found):
  """Over a short cable: a worker for each branch."""
  a, b = found.branches
  near = all(link.latency_us < DELAY_US / 2 for link in found.links)
  return near and len(a) == len(b) == 1 and a != b


def stays_together(found):
  """Over the long one: one worker, for two delays are longer than a branch."""
  a, b = found.branches
  return (
    all(
      0.9 * DELAY_US <= link.latency_us < 4 * DELAY_US for link in found.links
    )
    and a == b
    and len(a) == 1
    and 2 * DELAY_US <= found.starting_us < 8 * DELAY_US
    and found.apart_us > found.one_us
  )


def test_the_best_placement_changes_with_the_measured_link(
  machines, hosts_path, branches, quick_links
):
  def found():
    return planned_and_measured(machines, hosts_path, branches, quick_links)

  short = patiently(found, shares_the_work)
  try:
    machines.lengthen(DELAY_US / 1e6)
  except Unavailable as why:
    pytest.skip(f"no delay here: {why}")
  long = patiently(found, stays_together)

  assert shares_the_work(short), short
  assert stays_together(long), long
  assert all(link.channel is None for link in long.links)  # one for each way
  # The input goes there, the mean comes back, whatever else the host does.
  assert long.apart_us > 2 * DELAY_US


def test_workers_take_connections_to_their_own_address_only(
  machines, hosts_path
):
  with machines.on(0), serving(("127.0.0.1:0",), ((),)) as (inside,):
    assert reaches("127.0.0.1", inside.port)
    assert not reaches(ADDRESSES[0], inside.port)
    with machines.on(1):
      assert not reaches(ADDRESSES[0], inside.port)
