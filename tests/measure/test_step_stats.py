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
  add(device, "a", 110, 3)
  add(device, "runtime/ctrl_S3", 111, 7)
  add(device, "a", 115, 4)  # Once more: its time is the sum.
  trace = step_stats.parse(stats, {"a"})
  assert set(trace.ops) == {"a"}
  assert trace.ops["a"].compute_us == 7
  assert trace.ops["a"].start_us == 10.5
  assert trace.ops["a"].device == CPU


def test_peak_is_that_of_allocations_less_releases_over_time():
  stats = step_stats_pb2.StepStats()
  device = stats.dev_stats.add(device=CPU)
  # 100 held from 1 to 5; 50 from 2 to 3; 60 from 3: the release at 3 comes
  # first, so the peak is 160, not 210.
  add(device, "a", 1, 1, memory=[(1, 100), (5, -100)])
  add(device, "b", 2, 1, memory=[(2, 50), (3, -50)])
  add(device, "c", 3, 1, memory=[(3, 60)])
  assert step_stats.parse(stats, {"a"}).peak_bytes == {CPU: 160}


def traced(device, start_us, took_us, name):
  """Adds an event as TensorFlow's GPU tracer does: in whole microseconds."""
  device.node_stats.add(
    node_name=name,
    all_start_micros=start_us,
    op_end_rel_micros=took_us,
    all_end_rel_micros=took_us,
    timeline_label="volta_sgemm_128x64_nn regs:126",
  )


def of_a_gpu():
  """Launches of four ops, and what the tracer adds for two of them."""
  stats = step_stats_pb2.StepStats()
  launches = stats.dev_stats.add(device=GPU)
  for i, name in enumerate(("a", "b", "shape", "AddN")):
    add(launches, name, 1_000_000 + 10 * i, 5)
  return stats


def test_ops_of_a_gpu_take_the_time_of_their_kernels_and_copies():
  stats = of_a_gpu()
  tracer = {
    name: stats.dev_stats.add(device=f"/device:GPU:0/{name}")
    for name in (
      *("stream:all", "stream:14", "stream:15<MemcpyD2D>"),
      *("memcpy", "sync", "stream:"),
    )
  }
  # Two kernels of a, one of b and a copy of b, each listed twice.
  for name in ("stream:all", "stream:14"):
    traced(tracer[name], 1_000_030, 30, "a:MatMul")
    traced(tracer[name], 1_000_060, 0, "a:MatMul")
    traced(tracer[name], 1_000_070, 7, "b:AssignAddVariableOp")
  for name in ("stream:15<MemcpyD2D>", "memcpy"):
    traced(tracer[name], 1_000_080, 2, "b:AssignAddVariableOp")
  traced(tracer["memcpy"], 1_000_090, 9, "edge_1_a:_Send")
  traced(tracer["sync"], 999_000, 50, "cuStreamSynchronize")
  trace = step_stats.parse(stats, {"a", "b", "shape", "AddN"})
  # Whole microseconds lack half of one on average: 30.5 + 0.5, 7.5 + 2.5.
  times = {name: op.compute_us for name, op in trace.ops.items()}
  assert times == {"a": 31.0, "b": 10.0, "shape": 0.0, "AddN": 0.0}
  # After the first launch.
  assert trace.ops["a"].start_us == 30.0
  assert trace.ops["b"].start_us == 70.0
  assert set(trace.peak_bytes) == {GPU}
  assert not trace.untimed_gpus


def test_gpus_without_traced_kernels_are_named():
  stats = of_a_gpu()
  add(stats.dev_stats.add(device=CPU), "host", 1_000_000, 3)
  trace = step_stats.parse(stats, {"a", "b", "host"})
  assert trace.untimed_gpus == (GPU,)
  assert trace.ops["a"].compute_us == pytest.approx(5.0)
