"""Measured costs put in the place of estimates."""

import numpy as np
import pytest
from small_steps import Step

from tfplace.graph.cluster import Cluster, Device
from tfplace.graph.problem import Problem
from tfplace.measure import Profile, WorkerCluster, profile, profiling
from tfplace.measure.messages import OpTime, Trace


def trace(**times_us):
  ops = {name: OpTime("d", 0.0, us, {}) for name, us in times_us.items()}
  return Trace(ops, (), {})


def test_op_time_is_the_median_over_the_traces_on_the_device():
  traces = [trace(a=1.0, b=2.0), trace(a=9.0, b=2.0), trace(a=3.0)]
  assert profiling.op_times_us(traces, "d") == {"a": 3.0, "b": 2.0}
  assert profiling.op_times_us(traces, "other") == {}


def test_overhead_is_what_the_step_took_beyond_its_kernels_per_op():
  # 3 ops of nonzero time take 60 us of a step of 90: 10 us each lie between.
  traces = [trace(a=10.0, b=20.0, c=30.0, d=0.0)]
  assert profiling.overhead_us(90.0, traces) == pytest.approx(10.0)
  assert profiling.overhead_us(50.0, traces) == 0.0


def test_profile_of_a_real_step_times_every_op(
  workers: WorkerCluster, trained: Step
):
  devices = tuple(Device(name, "CPU") for name in workers.device_names)
  problem = Problem(trained.graph, Cluster("test", devices))
  found = profile(problem, trained.traced, workers, steps=5, traced_steps=3)
  assert set(found.times_us["CPU"]) == set(trained.graph.names)
  measured = found.apply(problem)
  np.testing.assert_array_equal(
    measured.graph.time_us["CPU"],
    [found.times_us["CPU"][name] for name in trained.graph.names],
  )
  overhead = measured.cluster.devices[1].op_overhead_us
  # A step of a dozen tiny ops is nearly all dispatch.
  assert 0 < overhead * trained.graph.num_ops <= found.step_time_us["CPU"]


def test_kinds_without_a_profile_keep_their_overhead(trained: Step):
  devices = (Device("a", "CPU", op_overhead_us=7.0),)
  problem = Problem(trained.graph, Cluster("test", devices))
  applied = Profile({}, {"GPU": 1.0}, {}).apply(problem)
  assert applied.cluster.devices[0].op_overhead_us == 7.0
