"""Measured costs put in the place of estimates."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.testing.clusters import linked
from tests.testing.small_steps import Step, as_graph
from tfplace.cost.measured_costs import noise_of
from tfplace.extraction.traced import TracedStep
from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.op_graph import OpSpec, build_graph
from tfplace.graph.problem import Problem
from tfplace.measure.calibrate import profiling
from tfplace.measure.calibrate.profiling import Profile, profile
from tfplace.measure.harness import MeasurementHarness
from tfplace.measure.local.devices import WorkerCluster
from tfplace.measure.local.runtime import ChildError
from tfplace.measure.session.messages import OpTime, StepReply, Trace
from tfplace.simulate import Simulator


def trace(**times_us):
  ops = {name: OpTime("d", 0.0, us, {}) for name, us in times_us.items()}
  return Trace(ops, {})


def test_op_time_is_the_lower_quartile_over_the_traces():
  # Times are 1, 2, 3, 9 and 100: disturbances only ever add.
  traces = [trace(a=us, b=2.0) for us in (3.0, 100.0, 1.0, 9.0, 2.0)]
  assert profiling.op_times_us(traces) == {"a": 2.0, "b": 2.0}
  assert profiling.op_times_us([]) == {}


def test_gap_is_the_time_between_two_ops_of_one_device():
  # On d: 0 to 10, 12 to 20, 26 to 30, so gaps of 2 and 6; on e one op only.
  ops = {
    "a": OpTime("d", 0.0, 10.0, {}),
    "c": OpTime("d", 26.0, 4.0, {}),
    "b": OpTime("d", 12.0, 8.0, {}),
    "e": OpTime("e", 11.0, 1.0, {}),
  }
  assert profiling.gap_us([Trace(ops, {})], {"d", "e"}) == 4.0
  assert profiling.gap_us([Trace(ops, {})], {"e"}) == 0.0


class Small:
  """Devices that hold two of the four ops; all take 5 us, 1 us apart."""

  runs_in_order = False
  device_names = ("d0", "d1")

  def __init__(self):
    self.asked = []

  def start(self):
    pass

  def starting_us(self, device):
    return 0.0

  def run(self, request, timeout_s, on_stage):
    nodes = tf.compat.v1.GraphDef.FromString(request.graph_def).node
    on = {
      name: [n.name for n in nodes if n.device == name]
      for name in self.device_names
    }
    self.asked.append({name: len(ops) for name, ops in on.items()})
    if max(self.asked[-1].values()) > 2:
      raise ChildError("out_of_memory", "no room")
    ops = {
      name: OpTime(device, 6.0 * i, 5.0, {})
      for device, names in on.items()
      for i, name in enumerate(names)
    }
    return StepReply([24.0], {}, {}, [Trace(ops, {})], 0.0)


def four_ops():
  """The step a -> b -> c -> d on two devices."""
  with tf.Graph().as_default() as graph:
    x = tf.constant(1.0, name="a")
    for name in "bcd":
      x = tf.abs(x, name=name)
  traced = TracedStep("t", graph.as_graph_def(), {}, (x.name,), (), {}, False)
  return Problem(as_graph(traced), linked(("d0", "d1"), 1.0)), traced


def test_busy_times_of_launches_are_told():
  class Untimed(Small):
    def run(self, *args):
      reply = super().run(*args)
      traces = [dataclasses.replace(reply.traces[0], untimed_gpus=("d1",))]
      return dataclasses.replace(reply, traces=traces)

  problem, traced = four_ops()
  said = []
  options = {"steps": 1, "on_stage": said.append}
  harness = MeasurementHarness(problem, traced, Untimed(), **options)
  (found,) = harness.evaluate(np.array([[0, 0, 1, 1]]))
  assert found.extra["untimed_gpus"] == ["d1"]
  assert "CUPTI is missing" in said[-1]


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_request_that_grpc_repeated_is_sent_once_more(failures):
  class Repeating(Small):
    def run(self, request, timeout_s, on_stage):
      if len(self.asked) < failures:
        self.asked.append(None)
        raise ChildError("lost", "The same request was received twice.")
      return super().run(request, timeout_s, on_stage)

  problem, traced = four_ops()
  harness = MeasurementHarness(problem, traced, Repeating())
  (found,) = harness.evaluate(np.array([[0, 0, 1, 1]]))
  if failures < 2:
    assert found.step_time_us == 24.0
  else:
    assert found.extra["error_kind"] == "lost"


def test_a_step_too_large_for_one_device_is_profiled_on_all():
  problem, traced = four_ops()
  small = Small()
  found = profile(problem, traced, small)
  assert small.asked == [{"d0": 4, "d1": 0}, {"d0": 2, "d1": 2}]
  assert found.times_us["CPU"] == dict.fromkeys("abcd", 5.0)
  assert found.op_overhead_us == {"CPU": 1.0}


def beside_a_cpu(kinds):
  """A step of a variable, its read, a product and its update."""
  both = dict.fromkeys(kinds, 8.0)
  ops = [
    OpSpec("w", "VarHandleOp", both, [0.0], 4e6, colocation="w"),
    OpSpec("read", "ReadVariableOp", both, [4e6]),
    OpSpec("y", "MatMul", both, [4.0]),
    OpSpec("text", "StringFormat", {"CPU": 8.0}, [4.0]),
    OpSpec("update", "ResourceApplyAdam", both, [], colocation="w"),
  ]
  graph = build_graph("g", ops, [(0, 0, 1), (1, 0, 2), (2, 0, 3), (2, 0, 4)])
  devices = [Device(f"/device:{kind}:0", kind) for kind in kinds]
  return Problem(graph, linked(devices, 1e3))


def ran_with(problem, times_us, rows, untimed=()):
  """Runs placements; an op takes the time of its kind."""

  def run(row):
    rows.append(row.tolist())
    ops = {
      name: OpTime(
        problem.cluster.devices[d].name,
        0.0,
        times_us[problem.cluster.devices[d].kind],
        {},
      )
      for name, d in zip(problem.graph.names, row, strict=True)
    }
    return [100.0], [Trace(ops, {}, untimed)]

  return run


def test_beside_gpus_the_cpu_runs_only_what_may_be_placed_there():
  problem = beside_a_cpu(["GPU", "CPU"])
  rows = []
  run = ran_with(problem, {"GPU": 10.0, "CPU": 24.0}, rows)
  found = profiling.profiled(problem, run)
  # All on the GPU but the op without a kernel; then the variable's ops, too.
  assert rows == [[0, 0, 0, 1, 0], [1, 0, 0, 1, 1]]
  assert set(found.times_us["CPU"]) == {"w", "text", "update"}
  assert set(found.times_us["GPU"]) == {"w", "read", "y", "update"}
  assert set(found.step_time_us) == {"GPU"}
  # Other ops keep their estimate times the median of measured over estimated.
  graph = found.apply(problem).graph
  np.testing.assert_array_equal(graph.time_us["CPU"], 24.0)


def test_each_kind_of_gpu_is_profiled():
  problem = beside_a_cpu(["GPU-a100", "GPU-v100", "CPU"])
  rows = []
  speeds = {"GPU-a100": 5.0, "GPU-v100": 10.0, "CPU": 24.0}
  found = profiling.profiled(problem, ran_with(problem, speeds, rows))
  assert rows[:2] == [[0, 0, 0, 2, 0], [1, 1, 1, 2, 1]]
  for kind, time_us in speeds.items():
    assert found.times_us[kind]["update"] == time_us


def test_without_traced_kernels_estimates_are_scaled_to_the_step(caplog):
  problem = beside_a_cpu(["GPU", "CPU"])
  # Launches take 1 us; estimates of 8 us for four ops and 24 us of the CPU.
  run = ran_with(problem, {"GPU": 1.0, "CPU": 24.0}, [], ["/device:GPU:0"])
  found = profiling.profiled(problem, run)
  assert "no kernels on /device:GPU:0, because CUPTI" in caplog.text
  assert found.times_us["GPU"] == dict.fromkeys(
    ("w", "read", "y", "update"), 8.0
  )
  # 100 us of the step less 56 us, among the five ops.
  assert found.op_overhead_us["GPU"] == pytest.approx((100 - 56) / 4)


TIMES = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 0.0}


def test_overhead_is_what_a_step_took_beyond_kernels_per_op():
  # 3 ops of nonzero time take 60 us of a step of 90: 15 us twice between them.
  assert profiling.fitted(TIMES, 90.0) == (TIMES, 15.0)


def test_ops_slowed_by_tracing_add_up_to_the_step_without_it():
  halved = {"a": 5.0, "b": 10.0, "c": 15.0, "d": 0.0}
  assert profiling.fitted(TIMES, 30.0) == (halved, 0.0)
  # On several devices ops overlap, and the sum tells nothing.
  assert profiling.fitted(TIMES, 30.0, alone=False) == (TIMES, 0.0)


@pytest.mark.parametrize("step_us", [40.0, 60.0, 95.0])
def test_on_one_device_the_simulated_step_is_the_timed_one(step_us):
  times, overhead_us = profiling.fitted(TIMES, step_us)
  ops = [OpSpec(name, "Relu", {"CPU": 1.0}, [4.0]) for name in TIMES]
  graph = build_graph("g", ops, [(3, 0, 0), (0, 0, 1), (1, 0, 2)])
  alone = Cluster("one", (Device("d", "CPU"),))
  applied = Profile(
    {"CPU": times}, {"CPU": overhead_us}, {"CPU": step_us}, {"CPU": 0.01}
  )
  problem = applied.apply(Problem(graph, alone))
  row = np.zeros((1, 4), np.int32)
  (evaluation,) = Simulator(problem).evaluate(row)
  assert evaluation.step_time_us == pytest.approx(step_us)
  assert noise_of(problem.graph) == 0.01


def test_profile_of_a_real_step_times_every_op(
  workers: WorkerCluster, trained: Step
):
  devices = tuple(Device(name, "CPU") for name in workers.device_names)
  problem = Problem(trained.graph, Cluster("test", devices))
  found = profile(problem, trained.traced, workers, steps=5, traced_steps=3)
  assert set(found.times_us["CPU"]) == set(trained.graph.names)
  assert 0 <= found.noise["CPU"] < 1
  measured = found.apply(problem)
  np.testing.assert_array_equal(
    measured.graph.time_us["CPU"],
    [found.times_us["CPU"][name] for name in trained.graph.names],
  )
  overhead = measured.cluster.devices[1].op_overhead_us
  # The rest of the step, shared among the ops; nothing where the traced
  # steps happened to be no slower than the timed ones.
  timed = np.count_nonzero(measured.graph.time_us["CPU"])
  assert 0 <= overhead * (timed - 1) <= found.step_time_us["CPU"]
