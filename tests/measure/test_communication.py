"""Messages as ops: times by hand, and who sends what to whom."""

import dataclasses

import numpy as np
import pytest

from tfplace.core.cluster import Cluster, Device, Link
from tfplace.core.op_graph import OpSpec, build_graph
from tfplace.core.problem import Problem
from tfplace.formats import load_cluster, save_cluster
from tfplace.measure.calibrate import communication
from tfplace.measure.calibrate.communication import CommunicationFactors
from tfplace.simulate import Simulator

DEVICES = tuple(Device(f"d{i}", "CPU") for i in range(3))


def cluster(**extra):
  """Three devices; a message takes 2 us and 0.1 us a byte, and 3 us between.

  `extra` of a link replaces what says that the devices do that work.
  """
  links = []
  for a in DEVICES:
    for b in DEVICES:
      if a is not b:
        link = Link(a.name, b.name, 10.0, latency_us=3.0, gap_us=2.0)
        more = extra or communication.as_timed(link)
        links.append(dataclasses.replace(link, extra=more))
  return Cluster("three", DEVICES, tuple(links))


def problem(edges, times, **extra):
  """Ops "0", "1", ... with one output of 100 bytes each."""
  ops = [
    OpSpec(str(i), "Relu", {"CPU": time_us}, [100.0])
    for i, time_us in enumerate(times)
  ]
  return Problem(build_graph("g", ops, edges), cluster(**extra))


def step_us(placed, devices, factors):
  messages = communication.with_messages(placed, np.array(devices, np.int32))
  simulator = Simulator(messages.costed(factors))
  return simulator.evaluate(messages.devices[None])[0].step_time_us


def sent(placed, devices):
  """Names and types of the ops that are added."""
  messages = communication.with_messages(placed, np.array(devices, np.int32))
  graph, count = messages.problem.graph, placed.graph.num_ops
  assert set(graph.types[count:]) <= {communication.RECEIVE}
  np.testing.assert_array_equal(messages.devices[:count], devices)
  return list(graph.names[count:])


@pytest.mark.parametrize(
  ("factors", "expected_us"),
  [
    # 10 and 12 to send; 3 on the way; 12 to receive; 5.
    (CommunicationFactors(), 42.0),
    # 10 and 2 * 2 + 10 to send; 3; 14; 5.
    (CommunicationFactors(message=2.0), 46.0),
    (CommunicationFactors(bytes=0.5), 10 + 7 + 3 + 7 + 5),
    (CommunicationFactors(latency=4.0), 10 + 12 + 12 + 12 + 5),
    # The first has twice the work of the second, so it is half as long beside
    # it: 10 * 1.1 and 5 * 1.2.
    (CommunicationFactors(computing=1.2), 11 + 12 + 3 + 12 + 6),
  ],
  ids=str,
)
def test_a_message_takes_time_of_both_devices(factors, expected_us):
  placed = problem([(0, 0, 1)], [10.0, 5.0])
  # Beside that, 100 bytes at memory speed, 1e6 bytes/us.
  assert step_us(placed, [0, 1], factors) == pytest.approx(
    expected_us + 1e-4, abs=1e-9
  )


def test_on_one_device_nothing_is_sent_or_slowed():
  placed = problem([(0, 0, 1)], [10.0, 5.0])
  assert sent(placed, [1, 1]) == []
  factors = CommunicationFactors(9.0, 9.0, 9.0, 9.0)
  assert step_us(placed, [1, 1], factors) == 15.0


def test_an_output_goes_once_to_each_device_that_reads_it():
  edges = [(0, 0, 1), (0, 0, 2), (0, 0, 3), (1, 0, 4)]
  placed = problem(edges, [1.0] * 5)
  assert sent(placed, [0, 1, 1, 2, 1]) == ["0:0 to 1", "0:0 to 2"]


def test_who_waits_without_reading_gets_an_empty_message():
  placed = problem([(0, -1, 1)], [10.0, 5.0])
  assert sent(placed, [0, 1]) == ["0:-1 to 1"]
  # 10 and 2 to send, 3 on the way, 2 to receive, 5.
  assert step_us(placed, [0, 1], CommunicationFactors()) == 22.0


def test_receiving_has_its_turn_among_the_ops_of_the_device():
  # 0 -> 1 on the other device, where 2 runs from 0 to 40: the message is there
  # at 10 + 12 + 3, is received from 40 to 52, and 1 runs until 57.
  placed = problem([(0, 0, 1)], [10.0, 5.0, 40.0])
  took = step_us(placed, [0, 1, 1], CommunicationFactors())
  assert took == pytest.approx(57.0)


def test_links_that_are_no_work_of_devices_stay_as_they_are():
  placed = problem([(0, 0, 1)], [10.0, 5.0], product="a cable")
  assert communication.factors_of(placed.cluster) is None
  assert sent(placed, [0, 1]) == []
  # 10, 100 bytes at 10 bytes/us, 3 on the way, 5.
  assert (
    step_us(placed, [0, 1], CommunicationFactors(9.0, 9.0, 9.0, 1.0)) == 28.0
  )


def test_factors_are_kept_in_the_file_of_the_cluster(tmp_path):
  assert communication.factors_of(cluster()) == CommunicationFactors()
  factors = CommunicationFactors(1.5, 2.0, 0.5, 1.1)
  path = tmp_path / "c.json"
  save_cluster(factors.recorded(cluster()), path)
  assert communication.factors_of(load_cluster(path)) == factors
