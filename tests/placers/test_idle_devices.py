"""Devices that hardly work."""

import numpy as np
import pytest

from tests.testing import problems
from tests.testing.clusters import linked
from tfplace.graph.cluster import Device
from tfplace.graph.evaluation import Result
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.placement import Placement
from tfplace.graph.problem import Problem
from tfplace.placers.idle_devices import idle_reason, without_idle_devices
from tfplace.simulate import Simulator


def _problem(times_us, edges=(), devices=3, memory=np.inf):
  ops = [
    OpSpec(f"op_{i}", "MatMul", {"GPU": us, "CPU": us}, [8.0], 8.0)
    for i, us in enumerate(times_us)
  ]
  return Problem(
    build_graph("step", ops, edges), problems.cluster([memory] * devices)
  )


def _dropped(problem, devices):
  simulator = Simulator(problem)
  placement = Placement(problem, np.array(devices, np.int32))
  (evaluation,) = simulator.evaluate([placement])
  result = Result("auto", placement, evaluation, (), 0.0, 1)
  return without_idle_devices(result, simulator)


def test_a_device_of_little_work_is_dropped():
  # 5 of 2,005 us lie on device 2; without it the step takes 1,005 us, 0.5%
  # longer.
  found = _dropped(_problem([1000.0, 1000.0, 5.0]), [0, 1, 2])
  assert sorted({*found.placement.devices.tolist()}) == [0, 1]
  assert found.evaluation.step_time_us == 1005.0


@pytest.mark.parametrize(
  "times, memory",
  [
    ([500.0, 500.0, 10.0], np.inf),  # The step is 2% longer without it.
    ([4000.0, 3900.0, 100.0], np.inf),  # 1.25% of all work.
    ([1000.0, 1000.0, 5.0], 20.0),  # A device holds two ops.
  ],
)
def test_a_device_of_more_use_is_kept(times, memory):
  found = _dropped(_problem(times, memory=memory), [0, 1, 2])
  assert found.placement.devices.tolist() == [0, 1, 2]


def test_all_losses_together_stay_below_the_limit():
  # Only the first device holds more than one op. Without one of the others the
  # step takes 0.6% longer, without both 1.2%.
  graph = _problem([1000.0, 6.0, 6.0]).graph
  problem = Problem(graph, problems.cluster([np.inf, 20.0, 20.0]))
  found = _dropped(problem, [0, 1, 2])
  assert found.evaluation.step_time_us == 1006.0


def test_a_cpu_beside_gpus_is_dropped_whatever_its_work_is():
  # The chain of 100 us on the CPU waits for nothing that the GPU does.
  ops = [
    OpSpec("a", "MatMul", {"GPU": 10000.0, "CPU": 1e6}, [8.0]),
    OpSpec("b", "MatMul", {"GPU": 50.0, "CPU": 500.0}, [8.0]),
  ]
  cluster = linked([Device("/device:GPU:0", "GPU"), "/device:CPU:0"])
  problem = Problem(build_graph("step", ops, []), cluster)
  found = _dropped(problem, [0, 1])
  assert found.placement.devices.tolist() == [0, 0]
  assert found.evaluation.step_time_us == 10050.0


def test_the_reason_of_idle_devices_is_the_dependencies():
  problem = _problem([5.0, 5.0], [(0, 0, 1)])
  told = idle_reason(Placement(problem, np.array([0, 0], np.int32)))
  assert told.startswith("2 GPUs do no work")
  assert "leave work for 1 device at once" in told
  three = _problem([5.0] * 3)
  assert not idle_reason(Placement(three, np.array([0, 1, 2], np.int32)))
