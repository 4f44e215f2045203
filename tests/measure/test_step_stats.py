"""Step stats written by hand, read as numbers."""

import pytest
from tensorflow.core.framework import step_stats_pb2

from tfplace.measure.session import step_stats

CPU = "/job:worker/replica:0/task:0/device:CPU:0"
GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


def add(device, name, start_us, took_us, **records):
  node = device.node_stats.add(
    node_name=name,
    all_start_nanos=start_us * 1000,
    op_start_rel_nanos=500,
    op_end_rel_nanos=500 + int(took_us * 1000),
  )
  memory = node.memory.add()
  for at, size in records.get("memory", ()):
    memory.allocation_records.add(alloc_micros=at, alloc_bytes=size)
  return node


def test_ops_are_timed_from_start_to_end_of_the_kernel():
  stats = step_stats_pb2.StepStats()
  device = stats.dev_stats.add(device=CPU)
  add(device, "_SOURCE", 100, 1)
  add(device, "a", 110, 7)
  add(device, "runtime/ctrl_S3", 111, 7)
  trace = step_stats.parse(stats, {"a"})
  assert set(trace.ops) == {"a"}
  assert trace.ops["a"].compute_us == 7
  assert trace.ops["a"].start_us == 10.5
  assert trace.ops["a"].device == CPU


def test_an_op_that_ran_twice_took_the_sum():
  stats = step_stats_pb2.StepStats()
  device = stats.dev_stats.add(device=CPU)
  add(device, "a", 1, 2)
  add(device, "a", 5, 4)
  assert step_stats.parse(stats, {"a"}).ops["a"].compute_us == 6


def test_peak_is_that_of_allocations_less_releases_over_time():
  stats = step_stats_pb2.StepStats()
  device = stats.dev_stats.add(device=CPU)
  # 100 held from 1 to 5; 50 from 2 to 3; 60 from 3: the release at 3 comes
  # first, so the peak is 160, not 210.
  add(device, "a", 1, 1, memory=[(1, 100), (5, -100)])
  add(device, "b", 2, 1, memory=[(2, 50), (3, -50)])
  add(device, "c", 3, 1, memory=[(3, 60)])
  assert step_stats.parse(stats, {"a"}).peak_bytes == {CPU: 160}


def test_kernels_on_a_gpus_streams_replace_their_launch():
  stats = step_stats_pb2.StepStats()
  add(stats.dev_stats.add(device=GPU), "a", 1, 2)
  streams = stats.dev_stats.add(device="/device:GPU:0/stream:all")
  for took in (30, 12.5):
    streams.node_stats.add(
      node_name="a:MatMul", op_end_rel_nanos=int(took * 1000)
    )
  trace = step_stats.parse(stats, {"a"})
  assert trace.ops["a"].compute_us == pytest.approx(42.5)
  assert set(trace.peak_bytes) == {GPU}
