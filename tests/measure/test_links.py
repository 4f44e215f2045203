"""A link's costs, found again from steps that the simulator has timed."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.measure.calibrate import fit, links
from tfplace.measure.session import messages
from tfplace.simulate import Simulator

A, B, C = (f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(3))
NETWORK = Link(A, B, 1000.0, latency_us=200.0, gap_us=20.0)
LOOPBACK = Link(
  *(A, B, 1e6),
  latency_us=15.0,
  send_us=35.0,
  send_us_per_byte=2.5e-4,
  recv_us=45.0,
  recv_us_per_byte=3e-4,
)
SLOW_RECEIVER = Link(
  *(A, B, 5000.0),
  latency_us=50.0,
  gap_us=4.0,
  send_us=5.0,
  recv_us=60.0,
  recv_us_per_byte=1e-3,
)
FIELDS = (
  *("send_us", "send_us_per_byte", "recv_us", "recv_us_per_byte"),
  *("latency_us", "gap_us"),
)


class SimulatedWorkers:
  """Times a step by simulating its graph on three devices."""

  def __init__(self, link, noise=0.0, products_us=25.0):
    """`noise`: of the steps; in one of ten of them fivefold, upwards."""
    self.noise, self.products_us = noise, products_us
    self.rng = np.random.default_rng(0)
    self.pairs, self.sizes = set(), set()
    ways = itertools.permutations((A, B, C), 2)
    self.cluster = Cluster(
      "three",
      tuple(Device(name, "CPU") for name in (A, B, C)),
      tuple(dataclasses.replace(link, src=a, dst=b) for a, b in ways),
    )

  def run(self, request, timeout_s):
    nodes = tf.compat.v1.GraphDef.FromString(request.graph_def).node
    where = np.array([self.cluster.index[n.device] for n in nodes], np.int32)
    problem = Problem(self.graph(nodes), self.cluster)
    (evaluation,) = Simulator(problem).evaluate(where[None])
    src, dst = problem.graph.edge_src, problem.graph.edge_dst
    self.pairs |= {
      (nodes[s].device, nodes[d].device)
      for s, d in zip(src, dst, strict=True)
      if where[s] != where[d]
    }
    off = self.noise * np.abs(self.rng.standard_normal(request.steps))
    off[self.rng.random(request.steps) < 0.1] *= 5.0
    steps = evaluation.step_time_us * (1.0 + off)
    return messages.StepReply(steps.tolist(), {}, {}, [], 0.0)

  def graph(self, nodes):
    index = {node.name: i for i, node in enumerate(nodes)}
    sizes, ops, edges = [], [], []
    for i, node in enumerate(nodes):
      size = 4.0
      if node.op == "Const":
        size = 4.0 * np.prod(
          [d.size for d in node.attr["value"].tensor.tensor_shape.dim]
        )
        self.sizes.add(size)
      elif node.op == "Identity":
        size = sizes[index[node.input[0]]]
      sizes.append(size)
      time_us = {"MatMul": self.products_us, "Rank": 0.5}.get(node.op, 0.0)
      ops.append(OpSpec(node.name, node.op, {"CPU": time_us}, [size]))
      edges += [
        (index[text.lstrip("^")], -text.startswith("^"), i)
        for text in dict.fromkeys(node.input)
      ]
    return build_graph("g", ops, edges)


def check(found, link, rel, message_us=1.0):
  """Fields within `rel`, and what the link lacks within `message_us`."""
  for field in FIELDS:
    scale = 1e-5 if "byte" in field else message_us
    assert getattr(found, field) == pytest.approx(
      getattr(link, field), rel=rel, abs=scale
    ), field


@pytest.mark.parametrize(
  "link", [NETWORK, LOOPBACK, SLOW_RECEIVER], ids=("net", "loopback", "slow")
)
def test_every_cost_is_found_again(link):
  found = links.measure(SimulatedWorkers(link), A, B)
  check(found, link, rel=0.05, message_us=5.0)
  slowness = 1.0 / found.bandwidth_bytes_per_us
  assert slowness == pytest.approx(
    1.0 / link.bandwidth_bytes_per_us, rel=0.05, abs=5e-5
  )
  for error in found.extra["held_out_error"].values():
    assert abs(error) < 0.05


def test_noise_and_outliers_leave_the_costs_of_the_devices():
  found = links.measure(SimulatedWorkers(LOOPBACK, noise=0.02), A, B)
  for field in FIELDS[:4]:
    assert getattr(found, field) == pytest.approx(
      getattr(LOOPBACK, field), rel=0.25
    ), field


def test_alike_processes_are_timed_once():
  workers = SimulatedWorkers(LOOPBACK)
  found = links.loopback_links(workers, (A, B, C))
  assert workers.pairs == {(A, B), (B, A)}
  ways = list(itertools.permutations((A, B, C), 2))
  assert [(link.src, link.dst) for link in found] == ways
  assert len({link.send_us for link in found}) == 1


def test_one_device_has_no_links():
  assert links.loopback_links(SimulatedWorkers(LOOPBACK), (A,)) == ()


def test_transfers_that_copy_nothing_have_a_very_high_bandwidth():
  free = dataclasses.replace(NETWORK, bandwidth_bytes_per_us=1e30)
  found = links.measure(SimulatedWorkers(free), A, B)
  assert found.bandwidth_bytes_per_us >= 1e5
  assert found.gap_us == pytest.approx(20.0, rel=0.05)


def test_slow_links_are_spared_the_large_tensors():
  # At 1 byte/us a message of 128 KiB takes 0.13 s, one of 1 MiB 1 s.
  slow = dataclasses.replace(NETWORK, bandwidth_bytes_per_us=1.0)
  workers = SimulatedWorkers(slow)
  found = links.measure(workers, A, B)
  assert max(workers.sizes - {4.0 * links.SIDE**2}) == 128 << 10
  assert found.bandwidth_bytes_per_us == pytest.approx(1.0, rel=0.02)


def test_without_times_there_is_no_fit():
  with pytest.raises(MeasurementError, match="no round trip"):
    fit.fit_link([])
