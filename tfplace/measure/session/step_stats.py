"""Devices, memory and step stats inside a measuring process."""

import dataclasses
from collections.abc import Container, Iterable, Iterator

import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2

from tfplace.measure.local import host
from tfplace.measure.session import messages

# Ends of the tracer's devices that have each kernel and each copy once.
_STREAMS, _COPIES = "/stream:all", "/memcpy"


def configure(config: messages.ChildConfig) -> None:
  """Configures the eager context's devices like those of sessions."""
  gpus = tf.config.list_physical_devices("GPU") if config.gpus else []
  if config.gpu_memory_mb:
    tf.config.set_visible_devices(gpus[:1], "GPU")
    for gpu in gpus[:1]:
      tf.config.set_logical_device_configuration(
        gpu,
        [
          tf.config.LogicalDeviceConfiguration(memory_limit=mb)
          for mb in config.gpu_memory_mb
        ],
      )
    return
  tf.config.set_visible_devices(gpus, "GPU")
  for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)


def reset_high_water(names: Iterable[str]) -> None:
  """Resets the memory peaks of the GPUs among the devices."""
  for gpu in _gpus(names).values():
    tf.config.experimental.reset_memory_stats(gpu)


def high_water_bytes(names: Iterable[str]) -> dict[str, float]:
  """Maps GPU names to the peak bytes of their allocators since the reset."""
  return {
    name: float(tf.config.experimental.get_memory_info(gpu)["peak"])
    for name, gpu in _gpus(names).items()
  }


def _gpus(names: Iterable[str]) -> dict[str, str]:
  gpus = (name for name in names if host.kind_of(name) == "GPU")
  return {name: name.rpartition("/device:")[2] for name in gpus}


def parse(
  stats: step_stats_pb2.StepStats, known: Container[str]
) -> messages.Trace:
  """Converts the step stats of one step to plain data.

  TensorFlow has two writers of step stats. The executor times ops on devices
  with full names, which for a GPU covers the launch only. The GPU's tracer
  (`xplane_to_step_stats.cc`) adds "/device:GPU:0/stream:all", "/memcpy" and
  devices that repeat these. With it, an op of a GPU takes the time of its
  kernels and copies, 0 without any.

  Args:
    known: names of the graph's ops; TensorFlow adds its own ops.
  """
  devices = [d for d in stats.dev_stats if d.device.startswith("/job:")]
  starts = [_start_us(n) for d in devices for n in d.node_stats]
  origin = min(starts, default=0.0)
  ops: dict[str, messages.OpTime] = {}
  for device in devices:
    for node in device.node_stats:
      if node.node_name in known:
        _add(ops, node.node_name, _op_time(node, device.device, origin))
  on_gpus = {name for name, op in ops.items() if ":GPU:" in op.device}
  untimed = {ops[name].device for name in on_gpus}
  if any(device.device.endswith(_STREAMS) for device in stats.dev_stats):
    untimed = set()
    _use_kernel_times(ops, on_gpus, stats, origin)
  peaks = {d.device: _peak_bytes(d.node_stats) for d in devices}
  return messages.Trace(ops, peaks, tuple(sorted(untimed)))


def _start_us(node: step_stats_pb2.NodeExecStats) -> float:
  """Returns the start; the GPU's tracer writes whole microseconds only."""
  return node.all_start_nanos / 1e3 or float(node.all_start_micros)


def _took_us(node: step_stats_pb2.NodeExecStats) -> float:
  """Returns the time from start to end of the kernel.

  The GPU's tracer cuts off to whole microseconds, half of one on average.
  """
  if node.op_end_rel_nanos:
    return (node.op_end_rel_nanos - node.op_start_rel_nanos) / 1e3
  return node.op_end_rel_micros - node.op_start_rel_micros + 0.5


def _op_time(
  node: step_stats_pb2.NodeExecStats, device: str, origin: float
) -> messages.OpTime:
  return messages.OpTime(
    device=device,
    start_us=_start_us(node) - origin + node.op_start_rel_nanos / 1e3,
    compute_us=_took_us(node),
    output_bytes={
      out.slot: float(
        out.tensor_description.allocation_description.requested_bytes
      )
      for out in node.output
    },
  )


def _add(
  ops: dict[str, messages.OpTime], name: str, time: messages.OpTime
) -> None:
  """Adds an op; the times of repeated runs (in a loop) are summed."""
  before = ops.get(name, time)
  total_us = time.compute_us + (before.compute_us if name in ops else 0.0)
  ops[name] = dataclasses.replace(
    time, start_us=before.start_us, compute_us=total_us
  )


def _use_kernel_times(
  ops: dict[str, messages.OpTime],
  on_gpus: Iterable[str],
  stats: step_stats_pb2.StepStats,
  origin: float,
) -> None:
  """Replaces times of ops by those of their kernels and copies ("op:Type")."""
  times: dict[str, list[tuple[float, float]]] = {}
  for device in stats.dev_stats:
    if device.device.endswith((_STREAMS, _COPIES)):
      for node in device.node_stats:
        name = node.node_name.rpartition(":")[0] or node.node_name
        times.setdefault(name, []).append((_start_us(node), _took_us(node)))
  for name in on_gpus:
    op, kernels = ops[name], times.get(name, [])
    start_us = min(
      (start - origin for start, _ in kernels), default=op.start_us
    )
    took_us = sum(took for _, took in kernels)
    ops[name] = dataclasses.replace(op, start_us=start_us, compute_us=took_us)


def _peak_bytes(nodes: Iterable[step_stats_pb2.NodeExecStats]) -> float:
  """Computes a peak; at one instant, releases come first, as when simulated."""
  live = peak = 0.0
  for _, size in sorted(_allocations(nodes)):
    live += size
    peak = max(peak, live)
  return peak


def _allocations(
  nodes: Iterable[step_stats_pb2.NodeExecStats],
) -> Iterator[tuple[int, int]]:
  for node in nodes:
    for memory in node.memory:
      for record in memory.allocation_records:
        yield record.alloc_micros, record.alloc_bytes
