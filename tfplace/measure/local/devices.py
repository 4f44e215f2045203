"""Devices of this host: worker processes, GPUs and logical devices.

`WorkerCluster` serves TensorFlow's gRPC runtime from N loopback processes. Each
computes on one thread, on its own core if there are enough cores. Task 0 also
holds the sessions. `LocalDevices` is one process with GPUs, logical GPUs on one
GPU, or logical CPUs. Each of its measurements uses a fresh process, because a
GPU's allocator returns no memory to the system and is configured once per
process.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from tfplace.errors import MeasurementError
from tfplace.graph.cluster import Cluster, Device, Link
from tfplace.graph.progress import Progress
from tfplace.measure.calibrate import links
from tfplace.measure.local import gpus, host, runtime
from tfplace.measure.session import messages

# One thread computes (`runs_in_order`). With a single thread, a tensor would be
# sent only after the ops that follow its producer on the same worker.
_EXECUTOR_THREADS = 2
_USABLE = 0.9  # fraction of a GPU's memory for its logical GPUs


class WorkerCluster(runtime.Runtime):
  """Cluster of `count` worker processes.

  Args:
    count: number of workers, which share the host's memory.

  Raises:
    MeasurementError: `count` is below 1.
  """

  runs_in_order = True

  def __init__(self, count: int) -> None:
    super().__init__()
    if count < 1:
      raise MeasurementError(f"{count} workers were asked for; at least 1")
    self.count = count

  @property
  def device_names(self) -> tuple[str, ...]:
    return tuple(
      f"/job:worker/replica:0/task:{task}/device:CPU:0"
      for task in range(self.count)
    )

  def _spawn(self) -> None:
    cores = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
      reserved = [host.reserved_port() for _ in range(self.count)]
      ports = [stack.enter_context(port) for port in reserved]
      for task in range(self.count):
        config = messages.ChildConfig(
          addresses=[f"{host.LOOPBACK}:{port}" for port in ports],
          task=task,
          threads=_EXECUTOR_THREADS,
          core=cores[task] if self.count <= len(cores) else None,
        )
        self._children.append(runtime.Child(f"worker {task}", config))
      self._await_ready()

  def cluster(self) -> Cluster:
    """Returns the workers as "CPU" devices; see `Runtime.cluster`."""
    memory = host.memory_bytes() / self.count
    extra = {"product": host.cpu_name()}
    return Cluster(
      name=f"workers:{self.count}",
      devices=tuple(
        Device(name, "CPU", memory_bytes=memory, extra=extra)
        for name in self.device_names
      ),
      links=links.equal_links(
        self.device_names, links.timer_on(self.device_names, self.time_each)
      ),
    )


class LocalDevices(runtime.Runtime):
  """Devices of one process, which is new in each measurement.

  Args:
    logical_gpus: number of logical GPUs on the first GPU; None to use every GPU
      whole.
    memory_bytes: memory of each logical GPU; None for equal shares of 0.9 of
      the GPU.
    logical_cpus: number of logical CPU devices, without any GPU. They share the
      host's cores and memory and replace GPUs in tests.
  """

  def __init__(
    self,
    logical_gpus: int | None = None,
    memory_bytes: float | None = None,
    logical_cpus: int | None = None,
  ) -> None:
    super().__init__()
    if logical_gpus is not None and logical_gpus < 1:
      raise MeasurementError(f"{logical_gpus} logical GPUs; at least 1")
    self._keep = False
    self._logical_gpus = logical_gpus
    self._memory_bytes = memory_bytes
    self._use_gpus = logical_cpus is None
    self._config = messages.ChildConfig(
      threads=max(2, logical_cpus or logical_gpus or 8),
      op_threads=0 if self._use_gpus else 1,
      cpu_devices=logical_cpus or 1,
      gpus=self._use_gpus,
    )
    self._gpus: dict[str, Device] = {}

  @property
  def device_names(self) -> tuple[str, ...]:
    """Lists the GPUs, then the CPU; empty before the first start."""
    return tuple(sorted(self._devices, key=host.gpus_first))

  @property
  def _devices(self) -> dict[str, float]:
    return {n: m for ready in self._ready for n, m in ready.devices.items()}

  def _spawn(self) -> None:
    if self._logical_gpus and not self._config.gpu_memory_mb:
      self._split(self._logical_gpus)
    self._spawn_one(describes=self._use_gpus and not self._gpus)

  def _spawn_one(self, describes: bool) -> None:
    config = dataclasses.replace(self._config, describes_gpus=describes)
    self._children.append(runtime.Child("process", config))
    self._await_ready()
    self._gpus |= {d.name: d for ready in self._ready for d in ready.gpus}
    if self._use_gpus and "GPU" not in map(host.kind_of, self._devices):
      raise MeasurementError("; ".join(host.why_no_gpu()))

  def _split(self, count: int) -> None:
    share = self._memory_bytes
    if share is None:  # start a process to read the GPU's memory
      self._spawn_one(describes=False)
      devices = self._devices.items()
      whole = min(m for name, m in devices if host.kind_of(name) == "GPU")
      self.stop()
      share = _USABLE * whole / count
    self._config = dataclasses.replace(
      self._config, gpu_memory_mb=[share / 2**20] * count
    )

  def _answer(self, request: Any, timeout_s: float, on_stage: Progress) -> Any:
    try:
      return super()._answer(request, timeout_s, on_stage)
    finally:
      if not self._keep:
        self.stop()

  @contextlib.contextmanager
  def one_process(self) -> Iterator[None]:
    """Lets runs in this context share a process, for small transfer graphs."""
    self._keep = True
    try:
      yield
    finally:
      self._keep = False
      self.stop()

  def _device(self, name: str) -> Device:
    """Describes a device; logical CPUs share the host's memory evenly."""
    if name in self._gpus:
      return self._gpus[name]
    memory = host.memory_bytes() / self._config.cpu_devices
    return Device(name, "CPU", memory, extra={"product": host.cpu_name()})

  def cluster(self) -> Cluster:
    with self.one_process():
      self.start()
      names = self.device_names
      gpus.log_measured(self._gpus.values())
      return Cluster(
        name="gpus",
        links=self._links(names),
        devices=tuple(map(self._device, names)),
      )

  def _links(self, names: Sequence[str]) -> tuple[Link, ...]:
    timer = links.timer_on(names, self.time_each)
    if self._gpus:
      return links.gpu_links(names, timer)
    return links.equal_links(names, timer)


def leave_gpus() -> bool:
  """Keeps this process off the GPUs, whose memory the measurements need.

  TensorFlow takes nearly all memory of a GPU at its first op, so building a
  model in this process would leave none to measure with.

  Returns:
    Whether there were any.

  Raises:
    MeasurementError: TensorFlow has already started on a GPU.
  """
  import tensorflow as tf

  had_any = bool(tf.config.get_visible_devices("GPU"))
  try:
    tf.config.set_visible_devices([], "GPU")
  except RuntimeError as error:
    raise MeasurementError(
      "this process has started TensorFlow on its GPUs, which the processes"
      " that measure need for themselves: open the cluster first"
    ) from error
  return had_any
