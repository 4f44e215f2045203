"""This host's own devices: its GPUs, logical GPUs of one, or logical CPUs.

Each measurement has a process of its own, since a GPU's allocator returns no
memory to the system and is configured once per process.
"""

import contextlib
import dataclasses
from collections.abc import Iterator

from tfplace.core.cluster import Cluster, Device
from tfplace.errors import MeasurementError
from tfplace.measure.calibrate import links
from tfplace.measure.local import host, processes, runtime
from tfplace.measure.session import messages

_USABLE = 0.9  # of a GPU's memory, for its logical GPUs together
_PREFIX = "/job:localhost/replica:0/task:0/device:"


class LocalDevices(runtime.Runtime):
  """The devices of one fresh process per measurement.

  Args:
    logical_gpus: split the first GPU into so many; None: every GPU, whole.
    memory_bytes: of each logical GPU; None: an equal share of 0.9 of the GPU.
    logical_cpus: so many logical CPU devices, and no GPU at all; they share
      the host's cores and memory, and stand in for GPUs where there is none.
    startup_timeout_s: for the process to come up.
  """

  def __init__(
    self,
    logical_gpus: int | None = None,
    memory_bytes: float | None = None,
    logical_cpus: int | None = None,
    startup_timeout_s: float = runtime.STARTUP_TIMEOUT_S,
  ) -> None:
    super().__init__(startup_timeout_s)
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

  @property
  def device_names(self) -> tuple[str, ...]:
    """GPUs first, for they are where ops should go."""
    return tuple(sorted(self._devices, key=_gpus_first))

  @property
  def _devices(self) -> dict[str, float]:
    """Name -> memory of the devices; empty before the first start."""
    found: dict[str, float] = {}
    for ready in self._ready:
      found.update(ready.devices)
    return found

  def _spawn(self) -> None:
    if self._logical_gpus and not self._config.gpu_memory_mb:
      self._split()
    self._spawn_one()

  def _spawn_one(self) -> None:
    self._children.append(processes.Child("process", self._config))
    self._await_ready(self._children)
    has_gpu = any(_kind(name) == "GPU" for name in self._devices)
    if self._use_gpus and not has_gpu:
      raise MeasurementError(
        "this host has no GPU that TensorFlow can use; choose --cluster="
        "workers:N for local worker processes"
      )

  def _split(self) -> None:
    """Sets the share of each logical GPU, asking a process what there is."""
    count = self._logical_gpus or 1
    share = self._memory_bytes
    if share is None:
      self._spawn_one()
      whole = min(m for n, m in self._devices.items() if _kind(n) == "GPU")
      self.stop()
      share = _USABLE * whole / count
    self._config = dataclasses.replace(
      self._config, gpu_memory_mb=[share / 2**20] * count
    )

  def run(
    self, request: messages.StepRequest, timeout_s: float
  ) -> messages.StepReply:
    try:
      return super().run(request, timeout_s)
    finally:
      if not self._keep:
        self.stop()

  @contextlib.contextmanager
  def one_process(self) -> Iterator[None]:
    """Lets the runs inside share one process: for small graphs of transfers."""
    self._keep = True
    try:
      yield
    finally:
      self._keep = False
      self.stop()

  def device_memory_bytes(self, name: str) -> float:
    """Memory of a device; logical CPUs share the host's evenly."""
    if _kind(name) == "GPU":
      return self._devices[name]
    return host.memory_bytes() / self._config.cpu_devices

  def hardware(self, name: str) -> str:
    """What a device is, such as "NVIDIA H100 80GB HBM3"."""
    return next(r.hardware[name] for r in self._ready if name in r.hardware)

  def cluster(self) -> Cluster:
    return gpus_cluster(self)


def leave_gpus() -> None:
  """Keeps this process off the GPUs, whose memory the measuring ones need.

  TensorFlow takes nearly all of a GPU's memory at its first op: building a
  model here would leave nothing to measure with.

  Raises:
    MeasurementError: TensorFlow has been started on a GPU already.
  """
  import tensorflow as tf

  try:
    tf.config.set_visible_devices([], "GPU")
  except RuntimeError as error:
    raise MeasurementError(
      "this process has started TensorFlow on its GPUs, which the processes"
      " that measure need for themselves: open the cluster first"
    ) from error


def gpus_cluster(local: LocalDevices) -> Cluster:
  """The devices of this host, their links measured.

  Raises:
    MeasurementError: no GPU, or the transfers could not be timed.
  """
  with local.one_process():
    local.start()
    names = local.device_names
    found = links.duplex_links(local, names)
  return Cluster(
    name="gpus",
    devices=tuple(
      Device(
        n,
        _kind(n),
        memory_bytes=local.device_memory_bytes(n),
        extra={"product": local.hardware(n)},
      )
      for n in names
    ),
    links=found,
  )


def _kind(name: str) -> str:
  return name.removeprefix(_PREFIX).partition(":")[0]


def _gpus_first(name: str) -> tuple[bool, int]:
  return _kind(name) != "GPU", int(name.rpartition(":")[2])
