"""Reads TensorFlow's step stats: op times, transfers, allocated memory."""

from collections.abc import Container, Iterable, Iterator

from tensorflow.core.framework import step_stats_pb2

from tfplace.measure import messages

_TRANSFER = "RecvTensor"
_GPU_STREAMS = "/stream:all"


def parse(
  stats: step_stats_pb2.StepStats, known: Container[str]
) -> messages.Trace:
  """One step's stats as plain data.

  A GPU's kernels are timed on its streams where the runtime traced them; the
  launch of a kernel is not its time.

  Args:
    stats: of one step.
    known: names of the ops that are wanted; the runtime adds its own.
  """
  devices = [d for d in stats.dev_stats if "/stream:" not in d.device]
  starts = [_start_ns(n) for d in devices for n in d.node_stats]
  origin = min(starts, default=0)
  ops: dict[str, messages.OpTime] = {}
  transfers: list[messages.Transfer] = []
  for device in devices:
    for node in device.node_stats:
      if node.node_name == _TRANSFER:
        transfers.append(_transfer(node, device.device, origin))
      elif node.node_name in known:
        _add(ops, node.node_name, _op_time(node, device.device, origin))
  for device in stats.dev_stats:
    if device.device.endswith(_GPU_STREAMS):
      _use_kernel_times(ops, device.node_stats)
  peaks = {d.device: _peak_bytes(d.node_stats) for d in devices}
  return messages.Trace(ops, transfers, peaks)


def _start_ns(node: step_stats_pb2.NodeExecStats) -> int:
  """Transfers have no nanoseconds."""
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
  """An op that ran more than once (in a loop) took the sum of its times."""
  before = ops.get(name)
  ops[name] = (
    time
    if before is None
    else messages.OpTime(
      before.device,
      before.start_us,
      before.compute_us + time.compute_us,
      time.output_bytes,
    )
  )


def _transfer(
  node: step_stats_pb2.NodeExecStats, device: str, origin: int
) -> messages.Transfer:
  start = _start_ns(node)
  took = node.all_end_rel_nanos or node.all_end_rel_micros * 1000
  return messages.Transfer(
    node.timeline_label, device, (start - origin) / 1e3, took / 1e3
  )


def _use_kernel_times(
  ops: dict[str, messages.OpTime],
  kernels: Iterable[step_stats_pb2.NodeExecStats],
) -> None:
  """Replaces host times by the sum of the op's kernels ("op:Type")."""
  sums: dict[str, float] = {}
  for kernel in kernels:
    name = kernel.node_name.rpartition(":")[0] or kernel.node_name
    took = kernel.op_end_rel_nanos or kernel.op_end_rel_micros * 1000
    sums[name] = sums.get(name, 0.0) + took / 1e3
  for name in sums.keys() & ops.keys():
    before = ops[name]
    ops[name] = messages.OpTime(
      before.device, before.start_us, sums[name], before.output_bytes
    )


def _peak_bytes(nodes: Iterable[step_stats_pb2.NodeExecStats]) -> float:
  """The highest sum of allocations less releases, in the order of time.

  At one microsecond, releases come first, as in the simulated step.
  """
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
