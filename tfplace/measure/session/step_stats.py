"""Devices, memory and step stats inside a measuring process."""

import dataclasses
from collections.abc import Container, Iterable, Iterator

import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2

from tfplace.measure.local import host
from tfplace.measure.session import messages

_GPU_STREAMS = "/stream:all"


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
  found = {name: host.kind_and_number(name) for name in names}
  return {
    name: f"GPU:{number}"
    for name, (kind, number) in found.items()
    if kind == "GPU"
  }


def parse(
  stats: step_stats_pb2.StepStats, known: Container[str]
) -> messages.Trace:
  """Converts the step stats of one step to plain data.

  GPU kernels are timed on their streams if TensorFlow traced those, because an
  op's own stats only cover the kernel launch. `known` are the names of the
  graph's ops; TensorFlow adds its own ops.
  """
  devices = [d for d in stats.dev_stats if "/stream:" not in d.device]
  starts = [_start_ns(n) for d in devices for n in d.node_stats]
  origin = min(starts, default=0)
  ops: dict[str, messages.OpTime] = {}
  for device in devices:
    for node in device.node_stats:
      if node.node_name in known:
        _add(ops, node.node_name, _op_time(node, device.device, origin))
  for device in stats.dev_stats:
    if device.device.endswith(_GPU_STREAMS):
      _use_kernel_times(ops, device.node_stats)
  peaks = {d.device: _peak_bytes(d.node_stats) for d in devices}
  return messages.Trace(ops, peaks)


def _start_ns(node: step_stats_pb2.NodeExecStats) -> int:
  """Returns the start in nanoseconds; some nodes only have microseconds."""
  return node.all_start_nanos or node.all_start_micros * 1000


def _op_time(
  node: step_stats_pb2.NodeExecStats, device: str, origin: int
) -> messages.OpTime:
  start = _start_ns(node) + node.op_start_rel_nanos
  return messages.OpTime(
    device=device,
    start_us=(start - origin) / 1e3,
    compute_us=(node.op_end_rel_nanos - node.op_start_rel_nanos) / 1e3,
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
  kernels: Iterable[step_stats_pb2.NodeExecStats],
) -> None:
  """Replaces op times by the sums of their kernels ("op:Type")."""
  sums: dict[str, float] = {}
  for kernel in kernels:
    name = kernel.node_name.rpartition(":")[0] or kernel.node_name
    took = kernel.op_end_rel_nanos or kernel.op_end_rel_micros * 1000
    sums[name] = sums.get(name, 0.0) + took / 1e3
  for name in sums.keys() & ops.keys():
    ops[name] = dataclasses.replace(ops[name], compute_us=sums[name])


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
